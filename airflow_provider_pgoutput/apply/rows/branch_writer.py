"""Writes folded rows to a branch: deletes by key, by whole row or by position in a file, then appends.

Delete and append read only the key columns of the target. An upsert MERGE would shuffle the whole target. The
last commit carries the batch's summary keys. ``publish.py`` publishes the branch.

Source: https://iceberg.apache.org/docs/latest/spark-writes/ (MERGE INTO, branches).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal, quote
from airflow_provider_pgoutput.apply.rows import key_ranges
from airflow_provider_pgoutput.apply.schema.spark_types import comparable
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.changes import (
    IS_CURRENT_COLUMN,
    VALID_TO_COLUMN,
    VALID_TO_LSN_COLUMN,
)
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_SOURCE_TABLE
from airflow_provider_pgoutput.batch.jobs import MERGE_ON_READ
from airflow_provider_pgoutput.batch.lake_types import WHOLE_NUMBERS
from airflow_provider_pgoutput.errors import PublishRefused, RowMissing, TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.rows.key_ranges import KeyRanges
    from airflow_provider_pgoutput.batch.table_version import Column

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_KEYS_VIEW = "pgoutput_keys"
_FILE, _POSITION = "_file", "_pos"
#: Columns for the file and the position of a row that is deleted. No column of a table may have one of these
#: names, or the name of an alias below: Spark would take ``t._file`` for a field of a column ``t``.
_ITS_FILE, _ITS_POSITION = "_pgoutput_file", "_pgoutput_pos"
_TARGET, _KEYS = Sql("_pgoutput_target"), Sql("_pgoutput_keys")
MERGE_MODE = "write.merge.mode"
#: History: columns of a frame of keys with the commit LSN and the commit time that end their versions.
END_LSN, END_TS = "end_lsn", "end_ts"
#: SQL: a version is current. Iceberg skips files by it.
IS_CURRENT = Sql(f"{IS_CURRENT_COLUMN} = true")
_ALL = Sql("true")
_DELETE = Sql("DELETE")


class BranchWriter:
    """Statements on one branch of one table, in a session that no other table uses meanwhile.

    :param columns: of the batch; position ``i`` is the staged column ``n<i>``.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: IcebergTable,
        branch: str,
        columns: Sequence[Column],
        constants: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        #: SQL of the text that every row has in a constant column, by the column's name.
        self._constants: dict[str, Sql] = {
            name: literal(text) for name, text in (constants or {}).items()
        }
        self.table = table
        self.branch = branch
        self._columns = columns
        #: SQL: whether a row of the branch is of the table's slice.
        self._own: Sql = table.name.own() or _ALL
        self._sql_name: Sql = table.name.branch_sql(branch)
        #: Newest snapshot of the branch: our own, or main's head when the branch was made.
        self.head = table.branch_head(branch)
        self._is_marked = False
        #: The schema with which everything is written.
        self._schema_id = self._current_schema_id()

    def rows(self, *more: Sql, where: Sql = _ALL) -> DataFrame:
        """The branch's rows, with the columns ``n<i>``.

        :param more: SQL of further columns, made of the target's own.
        :param where: SQL on the target's columns; other rows are left out.
        """
        return self.rows_as_they_are().where(where).selectExpr(*self._staged_columns(), *more)

    def rows_as_they_are(self) -> DataFrame:
        """The branch's rows, with the columns of the target."""
        return self._all() if self.table.name.slice is None else self._all().where(self._own)

    def held(self) -> int:
        """How many rows the branch holds, deleted ones included; 0: not known."""
        snapshot = None if self.head is None else self.table.java.snapshot(self.head)
        return 0 if snapshot is None else int(snapshot.summary().get("total-records") or 0)

    def delete_all(self) -> None:
        """Empty the branch. Of a slice, only its rows go."""
        if self.table.name.slice is None:
            self.table.delete_all(self.branch)
        else:
            self._spark.sql(f"DELETE FROM {self._sql_name} WHERE {self._own}")  # noqa: S608 - quoted
        self._follow()

    def mark(self, marker: Mapping[str, str]) -> None:
        """Give the branch a commit with the batch's summary keys, unless its newest commit has them."""
        if not self._is_marked:
            self.table.mark(self.branch, marker)
            self._follow()

    def replace_rows(
        self,
        rows: Sequence[Any],
        deletes: Sequence[Any],
        replaced: Sequence[Any],
        marker: Mapping[str, str],
    ) -> None:
        """Commit files that are written already, see ``iceberg/generic_rows.py``.

        :param rows: data files.
        :param deletes: delete files. Their positions belong to the branch's newest snapshot.
        :param replaced: delete files whose place the new ones take.
        :raises TableRefused: Iceberg took the files, but the branch does not have them.
        """
        before = self.head
        self.table.replace_rows(self.branch, before, rows, deletes, replaced, marker)
        self._follow(marked=True)
        if self.head == before:
            raise self._lost_rows()

    def delete_keys(
        self,
        keys: DataFrame,
        positions: Sequence[int],
        ranges: Sequence[KeyRanges] = (),
        marker: Mapping[str, str] | None = None,
        *,
        by_words: bool = False,
    ) -> None:
        """Delete the rows whose key is in ``keys``, a frame with the key columns ``n<i>``.

        :param ranges: all keys lie in them.
        :param by_words: look up whole numbers as bits of words, see ``key_ranges.py``.
        """
        names = {i: Sql(f"{_TARGET}.{quote(self._columns[i].name)}") for i in positions}
        kinds = {self._columns[i].lake_type for i in positions}
        if by_words and len(positions) == 1 and kinds <= WHOLE_NUMBERS:
            (i,) = positions
            key_ranges.words(keys, staged.new(i)).createOrReplaceTempView(_KEYS_VIEW)
            conditions = [key_ranges.condition(names[i], _KEYS)]
        else:
            keys.select(*(staged.new(i) for i in positions)).createOrReplaceTempView(_KEYS_VIEW)
            conditions = [Sql(f"{names[i]} = {_KEYS}.{staged.new(i)}") for i in positions]
        # Iceberg does not read files whose keys all lie outside.
        conditions += [each.condition(names[each.position]) for each in ranges]
        self._merge(Sql(" AND ".join(conditions)), _DELETE, marker)

    def end_keys(
        self, keys: DataFrame, positions: Sequence[int], ranges: Sequence[KeyRanges] = ()
    ) -> None:
        """History: end the current versions under the keys in ``keys``.

        :param keys: the key columns ``n<i>``, ``END_LSN`` and ``END_TS``. No key stands twice.
        :param ranges: all keys lie in them.
        """
        keys.createOrReplaceTempView(_KEYS_VIEW)
        names = {i: Sql(f"{_TARGET}.{quote(self._columns[i].name)}") for i in positions}
        conditions = [Sql(f"{names[i]} = {_KEYS}.{staged.new(i)}") for i in positions]
        # Iceberg reads no files in which no version is current, or whose keys all lie outside.
        conditions.append(Sql(f"{_TARGET}.{IS_CURRENT}"))
        conditions += [each.condition(names[each.position]) for each in ranges]
        ended = _ended(Sql(f"{_KEYS}.{END_LSN}"), Sql(f"{_KEYS}.{END_TS}"))
        self._merge(Sql(" AND ".join(conditions)), Sql(f"UPDATE SET {ended}"), None)

    def end_all(self, lsn: Sql, time: Sql, where: Sql = _ALL) -> None:
        """History: end all current versions.

        :param lsn: SQL of the commit LSN; ``time`` that of the commit time.
        :param where: SQL on the target's columns; other versions stay.
        """
        wanted = Sql(f"{self._own} AND {IS_CURRENT} AND ({where})")
        self._spark.sql(
            f"UPDATE {self._sql_name} SET {_ended(lsn, time)} WHERE {wanted}"  # noqa: S608 - quoted
        )
        self._follow()

    def images(self, positions: Sequence[int], where: Sql) -> DataFrame:
        """The branch's rows in comparable form, as the columns ``i<position>``; see ``full_identity.py``.

        :param where: SQL on the target's columns; other rows are left out.
        """
        columns = self._columns
        return (
            self.rows_as_they_are()
            .where(where)
            .selectExpr(
                *(
                    f"{comparable(quote(columns[i].name), columns[i].lake_type)} AS i{i}"
                    for i in positions
                )
            )
        )

    def delete_images(self, images: DataFrame, copies: Sql, where: Sql) -> None:
        """Delete as many equal rows for each row image as ``copies`` says.

        :param images: columns ``i<position>`` in comparable form, and ``copies``.
        :param where: SQL on the target's columns; other rows are not touched.
        :raises RowMissing: the target has fewer equal rows.
        """
        positions = [int(name[1:]) for name in images.columns if name != copies]
        forms = {
            f"c{i}": F.expr(comparable(quote(self._columns[i].name), self._columns[i].lake_type))
            for i in positions
        }
        place = [F.col(_FILE).alias(_ITS_FILE), F.col(_POSITION).alias(_ITS_POSITION)]
        held = (
            self.rows_as_they_are()
            .where(where)
            .select(*place, *(forms[f"c{i}"].alias(f"c{i}") for i in positions))
        )
        # One text: Spark's parser makes a balanced tree of it. A list of conditions would be as deep as there
        # are columns.
        same = F.expr(" AND ".join(f"c{i} <=> i{i}" for i in positions))
        matched = held.join(images, same, "inner")
        grouped = ", ".join(f"c{i}" for i in positions)
        number = F.expr(
            f"row_number() OVER (PARTITION BY {grouped} ORDER BY {_ITS_FILE}, {_ITS_POSITION})"
        )
        chosen = matched.withColumn("number", number).where(f"number <= {copies}")
        chosen = chosen.select(_ITS_FILE, _ITS_POSITION).localCheckpoint()
        wanted = images.agg(F.sum(copies)).first()
        if wanted is None or chosen.count() != (wanted[0] or 0):
            raise self.row_missing()
        self._delete_positions(chosen)

    def row_missing(self) -> RowMissing:
        """The error for an old row that is not in the target."""
        source = self.table.properties.get(PROPERTY_SOURCE_TABLE)
        return RowMissing(
            "A row that was deleted or updated at the source is not in the target.",
            table=self.table.name.target,
            advice=f"copy the table again (copy_tables{f'=[{source!r}]' if source else ''}).",
        )

    def _delete_positions(self, chosen: DataFrame) -> None:
        """Delete the rows in ``chosen``, which has a column for the file and one for the position."""
        if self.table.properties.get(MERGE_MODE) == MERGE_ON_READ:
            chosen.createOrReplaceTempView(_KEYS_VIEW)
            place = [
                f"{_TARGET}.{_FILE} = {_KEYS}.{_ITS_FILE}",
                f"{_TARGET}.{_POSITION} = {_KEYS}.{_ITS_POSITION}",
            ]
            self._merge(Sql(" AND ".join(place)), _DELETE, None)
            return
        # A copy-on-write MERGE does not see positions. So the files are written again without the rows.
        files = chosen.select(_ITS_FILE).distinct()
        names = [quote(name) for name in self._all().columns]
        rows = self._all().selectExpr(
            *names, f"{_FILE} AS `{_FILE}`", f"{_POSITION} AS `{_POSITION}`"
        )
        in_them = rows.join(files, F.col(_FILE) == F.col(_ITS_FILE), "left_semi")
        same = (F.col(_FILE) == F.col(_ITS_FILE)) & (F.col(_POSITION) == F.col(_ITS_POSITION))
        kept = in_them.join(chosen, same, "left_anti").selectExpr(*names).localCheckpoint()
        self.table.delete_files(self.branch, [row[_ITS_FILE] for row in files.collect()])
        self._follow()
        kept.writeTo(self._sql_name).option("check-nullability", "false").append()
        self._follow()

    def delete_without_key(self, key: Sequence[str]) -> None:
        """Delete rows with NULL in a key column. No change of the source would find them."""
        lacking = " OR ".join(f"{quote(name)} IS NULL" for name in key)
        self._spark.sql(f"DELETE FROM {self._sql_name} WHERE {self._own} AND ({lacking})")  # noqa: S608 - quoted
        self._follow()

    def mark_all_deleted(self, op_column: str) -> None:
        """Soft delete: mark every row of the branch as deleted."""
        op, gone = quote(op_column), f"'{staged.DELETE}'"
        self._spark.sql(
            f"UPDATE {self._sql_name} SET {op} = {gone} WHERE {self._own} AND NOT {op} <=> {gone}"  # noqa: S608 - quoted
        )
        self._follow()

    def set_constants(self) -> None:
        """Give every row of the branch the texts of the constant columns."""
        for name, text in self._constants.items():
            self._set_all(quote(name), text)

    def _set_all(self, column: Sql, value: Sql) -> None:
        self._spark.sql(
            f"UPDATE {self._sql_name} SET {column} = {value} WHERE {self._own} AND NOT {column} <=> {value}"  # noqa: S608 - quoted
        )
        self._follow()

    def set_null(self, columns: Sequence[str]) -> None:
        """Take the values of some columns from every row of the branch."""
        if not columns:
            return
        values = ", ".join(f"{quote(name)} = NULL" for name in columns)
        held = " OR ".join(f"{quote(name)} IS NOT NULL" for name in columns)
        self._spark.sql(f"UPDATE {self._sql_name} SET {values} WHERE {self._own} AND ({held})")  # noqa: S608 - quoted
        self._follow()

    def fill(self, column: str, value: Sql) -> None:
        """Set ``column`` to the SQL expression ``value`` in rows that are older than the column."""
        name = quote(column)
        older = f"UPDATE {self._sql_name} SET {name} = {value} WHERE {self._own} AND {name} IS NULL"  # noqa: S608 - quoted
        self._spark.sql(older)
        self._follow()

    def append(
        self,
        rows: DataFrame,
        extra: Mapping[str, Sql],
        marker: Mapping[str, str] | None = None,
    ) -> None:
        """Append rows.

        :param rows: the columns ``n<i>``, and every column that ``extra`` uses.
        :param extra: SQL of the target's other columns, by name.
        :param marker: summary keys of the commit; None: it has none.
        :raises TableRefused: Iceberg took the rows, but the branch does not have them.
        """
        at = {column.name: staged.new(i) for i, column in enumerate(self._columns)}
        selected, held = [], self._all()
        given: dict[str, Sql] = {**extra, **self._constants}
        if not at.keys() <= set(held.columns):
            raise self._changed()
        for field in held.schema.fields:
            if field.name in at:
                value = F.col(at[field.name])
            else:
                # A metadata column, a user's own column, or one that the source has no longer.
                value = F.expr(given.get(field.name, "NULL")).cast(field.dataType)
            selected.append(value.alias(field.name))
        writer = rows.select(*selected).writeTo(self._sql_name)
        for key, text in (marker or {}).items():
            writer = writer.option(f"snapshot-property.{key}", text)
        before = self.head
        writer.option("check-nullability", "false").append()
        self._follow(marked=bool(marker))
        # If nothing was committed, there must be no rows. They are looked at in this case only.
        if self.head == before and not rows.isEmpty():
            raise self._lost_rows()

    def add(self, rows: DataFrame, marker: Mapping[str, str]) -> None:
        """Append rows that have the columns of the table.

        :param marker: summary keys of the commit.
        """
        writer, before = rows.writeTo(self._sql_name), self.head
        for key, text in marker.items():
            writer = writer.option(f"snapshot-property.{key}", text)
        writer.option("check-nullability", "false").append()
        self._follow(marked=True)
        if self.head == before and not rows.isEmpty():
            raise self._lost_rows()

    def _merge(self, condition: Sql, action: Sql, marker: Mapping[str, str] | None) -> None:
        """Do something to the rows that match a row in the view of the keys."""
        own = self.table.name.own(_TARGET)
        if own is not None:
            condition = Sql(f"{own} AND ({condition})")
        for key, text in (marker or {}).items():
            self._spark.conf.set(_PROPERTY + key, text)
        try:
            self._spark.sql(
                f"MERGE INTO {self._sql_name} {_TARGET} USING {_KEYS_VIEW} {_KEYS} ON {condition} "
                f"WHEN MATCHED THEN {action}"
            )
        finally:
            for key in marker or {}:
                self._spark.conf.unset(_PROPERTY + key)
        self._follow(marked=bool(marker))

    def _follow(self, marked: bool = False) -> None:
        """Check that the branch holds our commits, one after the other, and nothing else.

        Another driver that takes over the batch removes our branch. A write to a removed branch would make it
        again, without the deletes that came before.

        :raises PublishRefused: the branch is no longer ours.
        """
        self.table.refresh()
        head = self.table.branch_head(self.branch)
        snapshot = None if head is None else self.table.java.snapshot(head)
        if snapshot is None or (head != self.head and snapshot.parentId() != self.head):
            raise PublishRefused(
                "Another driver took this batch over.", table=self.table.name.target
            )
        self._is_marked = marked and head != self.head
        self.head = head
        # We wrote with the columns of the start. If a column was renamed since, Spark wrote NULL into it.
        if self._current_schema_id() != self._schema_id:
            raise self._changed()

    def _lost_rows(self) -> TableRefused:
        return TableRefused(
            "Rows that were appended to a branch of it are not there.",
            table=self.table.name.target,
            advice="look for settings of Spark or properties of the table that send commits elsewhere, as"
            " spark.wap.id with write.wap.enabled does.",
        )

    def _changed(self) -> PublishRefused:
        return PublishRefused(
            "The columns changed while the batch was written.", table=self.table.name.target
        )

    def _current_schema_id(self) -> int:
        return int(self.table.java.schema().schemaId())

    def _all(self) -> DataFrame:
        return self._spark.table(self._sql_name)

    def _staged_columns(self) -> list[Sql]:
        return [
            Sql(f"{quote(column.name)} AS {staged.new(i)}")
            for i, column in enumerate(self._columns)
        ]


def _ended(lsn: Sql, time: Sql) -> Sql:
    """SQL that sets the columns of a version that ends."""
    return Sql(
        f"{VALID_TO_LSN_COLUMN} = {lsn}, {VALID_TO_COLUMN} = {time}, {IS_CURRENT_COLUMN} = false"
    )
