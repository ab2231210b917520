"""Few rows, read and written by the driver itself with Iceberg's generic records. No Spark job runs.

Values stay in Java. A row that is read from one file goes into another as it is.

Source: https://iceberg.apache.org/docs/latest/api/ and /javadoc/latest/ (IcebergGenerics, RowDelta).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import (
    Expression,
    all_of,
    class_named,
    elements,
    has_class,
    java_list,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

#: Iceberg 1.11 brought it.
_REGISTRY = "org.apache.iceberg.formats.FormatModelRegistry"
_RECORD = "org.apache.iceberg.data.Record"
_PARQUET, _PUFFIN = "PARQUET", "PUFFIN"
#: Ids of columns of the file that are no fields of the table. Iceberg's own reserved ids are far above.
_FIRST_OTHER_ID = 1_000_000_000
_GRANULARITY, _BY_FILE = "write.delete.granularity", "file"
#: No file of few positions gets as large.
_FILE_BYTES = 64 << 20

Key = tuple[Any, ...]
#: Positions of rows by data file.
Positions = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the table, as the table's JSON has it."""

    id: int
    name: str
    #: Iceberg's notation; of a list, map or struct it is not text.
    kind: object


def is_available(jvm: Any) -> bool:
    """Whether this version of Iceberg has what is used here."""
    return has_class(jvm, _REGISTRY)


def fields(table: IcebergTable) -> list[Field]:
    """The columns of the table."""
    return [Field(each["id"], each["name"], each["type"]) for each in table.schema["fields"]]


def read(
    jvm: Any,
    input_file: Any,
    staged: Mapping[str, Field],
    others: Mapping[str, str],
    target: Sequence[Field],
) -> tuple[list[Any], dict[str, int]]:
    """Read a Parquet file without field ids as records of the table.

    A column that the file lacks is read as NULL.

    :param input_file: an ``org.apache.iceberg.io.InputFile``.
    :param staged: the fields by the name of their column in the file.
    :param others: types of further columns of the file, by name.
    :param target: all fields of the table, in order.
    :return: the records, in the order of the file. They have the fields of the table first. Then the place in
        a record by the name of a column in the file.
    """
    other_ids = {name: _FIRST_OTHER_ID + number for number, name in enumerate(others)}
    ids = {name: field.id for name, field in staged.items()} | other_ids
    columns: list[tuple[int, object]] = [(field.id, field.kind) for field in target]
    columns += [(other_ids[name], kind) for name, kind in others.items()]
    # Optional: a change that deletes a row has no new values. Without defaults: NULL in the file is NULL.
    schema = class_named(jvm, "org.apache.iceberg.SchemaParser").fromJson(
        json.dumps(
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [
                    {"id": number, "name": f"f{number}", "required": False, "type": kind}
                    for number, kind in columns
                ],
            }
        )
    )
    mapping = class_named(jvm, "org.apache.iceberg.mapping.NameMappingParser").fromJson(
        json.dumps([{"field-id": number, "names": [name]} for name, number in ids.items()])
    )
    records = class_named(jvm, _REGISTRY).readBuilder(
        _format(jvm, _PARQUET), class_named(jvm, _RECORD)._java_lang_class, input_file
    )
    at = {number: place for place, (number, _) in enumerate(columns)}
    found = all_of(jvm, records.project(schema).withNameMapping(mapping).build())
    return found, {name: at[number] for name, number in ids.items()}


def positions(
    jvm: Any, table: IcebergTable, snapshot_id: int, names: Collection[str], where: Expression
) -> Positions:
    """Where a snapshot has certain rows: their positions by data file. Deleted rows are left out.

    :param names: of the columns in ``where``.
    :param where: true for the rows that are looked for, see ``any_of``.
    """
    schema = table.java.schema().select(java_list(jvm, names))
    metadata = class_named(jvm, "org.apache.iceberg.MetadataColumns")
    place = class_named(jvm, "org.apache.iceberg.Schema")(
        java_list(jvm, (metadata.FILE_PATH, metadata.ROW_POSITION))
    )
    projection = class_named(jvm, "org.apache.iceberg.types.TypeUtil").join(schema, place)
    at = {str(each.name()): i for i, each in enumerate(elements(projection.columns()))}
    scan = class_named(jvm, "org.apache.iceberg.data.IcebergGenerics").read(table.java)
    scan = scan.useSnapshot(snapshot_id).where(where).project(projection)
    file, position = at[str(metadata.FILE_PATH.name())], at[str(metadata.ROW_POSITION.name())]
    found: dict[str, list[int]] = defaultdict(list)
    for record in all_of(jvm, scan.build()):
        found[str(record.get(file))].append(int(record.get(position)))
    return found


def write_rows(jvm: Any, table: IcebergTable, rows: Iterable[Any]) -> Any:
    """Write records to one data file of an unpartitioned table; return the ``DataFile``."""
    out = _output_files(jvm, table).newOutputFile()
    writer = _writers(jvm, table).newDataWriter(out, table.java.spec(), None)
    try:
        for row in rows:
            writer.write(row)
    finally:
        writer.close()
    return writer.toDataFile()


def write_deletes(
    jvm: Any, table: IcebergTable, snapshot_id: int, found: Positions
) -> tuple[list[Any], list[Any]]:
    """Write which rows of a snapshot are deleted, in the form of the table's format version.

    The earlier deletes of a data file move into the new delete file. So a data file does not get one more
    delete file in each batch.

    :return: each new ``DeleteFile``, and the earlier ones that they replace.
    """
    granularity = table.properties.get(_GRANULARITY, _BY_FILE)
    as_vectors, spec = table.has_deletion_vectors, table.java.spec()
    earlier = _lookup(jvm, _earlier_deletes(jvm, table, snapshot_id, found, granularity))
    if as_vectors:
        # https://iceberg.apache.org/spec/#deletion-vectors: a data file has at most one.
        vectors = class_named(jvm, "org.apache.iceberg.io.PartitioningDVWriter")
        writer = vectors(_output_files(jvm, table, _PUFFIN), earlier)
    else:
        granularities = class_named(jvm, "org.apache.iceberg.deletes.DeleteGranularity")
        writer = class_named(jvm, "org.apache.iceberg.io.FanoutPositionOnlyDeleteWriter")(
            _writers(jvm, table),
            _output_files(jvm, table),
            table.java.io(),
            _FILE_BYTES,
            granularities.fromString(granularity),
            earlier,
        )
    delete = class_named(jvm, "org.apache.iceberg.deletes.PositionDelete").create()
    try:
        for path, positions_there in found.items():
            for position in positions_there:
                writer.write(delete.set(path, position), spec, None)
    finally:
        writer.close()
    result = writer.result()
    added, replaced = result.deleteFiles(), result.rewrittenDeleteFiles()
    return list(elements(added)), list(elements(replaced))


def _earlier_deletes(
    jvm: Any, table: IcebergTable, snapshot_id: int, found: Positions, granularity: str
) -> Any:
    """A Java map of the ``PositionDeleteIndex`` by path, for data files whose deletes are written anew.

    These are the rules of Spark's writer. In format version 2 a delete file is only replaced if all its
    deletes are of one data file. In version 3 a deletion vector takes over all deletes by position of its
    data file.
    """
    earlier = class_named(jvm, "java.util.HashMap")()
    as_vectors = table.has_deletion_vectors
    if not as_vectors and granularity != _BY_FILE:
        return earlier
    filters = class_named(jvm, "org.apache.iceberg.data.GenericDeleteFilter")
    of_one_file = class_named(jvm, "org.apache.iceberg.util.ContentFileUtil").isFileScoped
    schema, io = table.java.schema(), table.java.io()
    # Files of other slices have no row that is deleted here.
    for task in table.slice_files.tasks(table.java, snapshot_id):
        path = str(task.file().location())
        if path not in found or task.deletes().isEmpty():
            continue
        if as_vectors or all(of_one_file(each) for each in elements(task.deletes())):
            earlier.put(path, filters(io, task, schema, schema).deletedRowPositions())
    return earlier


def _lookup(jvm: Any, java_map: Any) -> Any:
    """A ``java.util.function.Function`` that looks up in a map. Python itself cannot be called from Java."""
    lang = "java.lang.invoke."
    kind = class_named(jvm, "java.lang.Object")._java_lang_class
    signature = class_named(jvm, f"{lang}MethodType").methodType(kind, kind)
    handles = class_named(jvm, f"{lang}MethodHandles").publicLookup()
    maps = class_named(jvm, "java.util.Map")._java_lang_class
    get = handles.findVirtual(maps, "get", signature).bindTo(java_map)
    functions = class_named(jvm, "java.util.function.Function")._java_lang_class
    return class_named(jvm, f"{lang}MethodHandleProxies").asInterfaceInstance(functions, get)


def any_of(
    jvm: Any, names: Sequence[str], keys: Collection[Key], constants: Mapping[str, str]
) -> Expression:
    """The Iceberg expression that is true for rows with one of these keys.

    :param names: of the key columns, which are whole numbers or texts.
    :param constants: texts that such a row has in further columns. They are compared first.
    """
    expressions = class_named(jvm, "org.apache.iceberg.expressions.Expressions")
    # These are words of Python.
    is_in, both = (getattr(expressions, name) for name in ("in", "and"))
    found = expressions.alwaysTrue()
    for name, text in constants.items():
        found = both(found, expressions.equal(name, text))
    # By these, files and row groups are skipped, and most rows.
    for number, name in enumerate(names):
        values = sorted({key[number] for key in keys})
        found = both(found, is_in(name, java_list(jvm, values)))
    if len(names) > 1:
        exact = []
        for key in keys:
            same = expressions.alwaysTrue()
            for name, value in zip(names, key, strict=True):
                same = both(same, expressions.equal(name, value))
            exact.append(Expression(same))
        found = both(found, either(jvm, exact))
    return Expression(found)


def either(jvm: Any, several: Sequence[Expression]) -> Expression:
    """The expression that is true if one of several is. Java visits it without deep recursion."""
    expressions = class_named(jvm, "org.apache.iceberg.expressions.Expressions")
    if len(several) <= 1:
        return several[0] if several else Expression(expressions.alwaysFalse())
    middle = len(several) // 2
    halves = either(jvm, several[:middle]), either(jvm, several[middle:])
    return Expression(getattr(expressions, "or")(*halves))


def _writers(jvm: Any, table: IcebergTable) -> Any:
    builder = class_named(jvm, "org.apache.iceberg.data.GenericFileWriterFactory$Builder")
    parquet = _format(jvm, _PARQUET)
    return builder(table.java).dataFileFormat(parquet).deleteFileFormat(parquet).build()


def _output_files(jvm: Any, table: IcebergTable, file_format: str = _PARQUET) -> Any:
    """Makes names of files as Spark's tasks do: each has a UUID."""
    factory = class_named(jvm, "org.apache.iceberg.io.OutputFileFactory")
    return factory.builderFor(table.java, 0, 0).format(_format(jvm, file_format)).build()


def _format(jvm: Any, name: str) -> Any:
    return getattr(class_named(jvm, "org.apache.iceberg.FileFormat"), name)
