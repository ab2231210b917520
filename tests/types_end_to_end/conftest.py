"""One table with a column of every type, carried from a server to Iceberg once for all tests here."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyarrow import parquet
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.changes import new
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.capture.types.cast import can_be_sent
from airflow_provider_pgoutput.capture.types.mapping import CATALOG_QUERY, type_catalog
from airflow_provider_pgoutput.capture.types.type_info import ATTRIBUTE_QUERY, with_attributes
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.types.oracle import plain
from tests.conformance.compare import connect
from tests.conformance.pipeline import Batch, Pipeline
from tests.reader_role import ROLE, reader_conninfo
from tests.types_end_to_end import german, keys
from tests.types_end_to_end.columns import (
    EXTENSIONS,
    TYPES,
    OracleColumn,
    columns,
    has_xml,
    missing_extensions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from quickstart.postgres import EmbeddedPostgres

_DATABASE = "types_end_to_end"
TABLE = "public.values"
_TARGET = "values"
_SOURCE = 'public."values"'
#: None of them may change a byte: scenario C63.
HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "latin1",
    "xmloption": "document",
    "array_nulls": "off",
    "search_path": "nowhere",
}
#: The same of the role, which go before those of the database.
HOSTILE_OF_ROLE = {
    "DateStyle": "SQL, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "extra_float_digits": "0",
    "bytea_output": "escape",
}


@dataclass(frozen=True)
class Staged:
    """The table at the server and in the staged files: by column, one value for each row by ``id``."""

    conninfo: str
    folder: Path
    columns: list[OracleColumn]
    #: Rows that were copied; as many were streamed after them, of the same values.
    copied: int
    #: As the server prints and as it stores them.
    texts: list[list[bytes | None]]
    stored: list[list[bytes | None]]
    #: Staged by the copy and, after it, by the stream, by the way of reading.
    values: dict[str, list[list[Any]]]
    #: Places of the columns that binary mode reads: those of its values.
    binary: list[int]
    batches: list[Batch]
    #: The same of the publication with the columns that binary mode reads.
    batches_in_binary: list[Batch]
    #: Why the server has no locale in which money looks different.
    no_locale: str | None


@dataclass(frozen=True)
class Carried:
    """The same in the lake, of the columns at these places."""

    staged: Staged
    places: Sequence[int]
    batches: list[Batch]
    #: By the engine that reads it.
    values: dict[str, list[list[Any]]]
    #: Rows of the side table by column: text by ``id``.
    rejected: list[dict[int, str]]
    pipeline: Pipeline


@pytest.fixture(scope="session")
def staged(
    postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Staged]:
    """The table, staged: copied, then streamed in three ways."""
    no_locale = german.make_locale(postgres_server)
    conninfo, folder = _make_database(postgres_server), tmp_path_factory.mktemp(_DATABASE)
    with contextlib.closing(connect(conninfo)) as session:
        chosen = _make_table(session)
        binary = _in_binary(session)
        copied = insert(session, chosen, first=1)
        for statement in keys.COPIED:
            session.execute(statement)
        requests = _requests(conninfo, folder, chosen, binary)
        _hostile(session, with_locale=no_locale is None)
        copy, copy_of_binary = _stage(requests["sql"]), _stage(requests["binary"])
        session.execute(
            "SELECT pg_copy_logical_replication_slot(%s, %s)",
            (_DATABASE, requests["walsender"]["slot_name"]),
        )
        insert(session, chosen, first=copied + 1)
        for statement in keys.STREAMED:
            session.execute(statement)
        for name in ("sql", "walsender"):
            requests[name]["column_types"] |= keys.ADDED_COLUMN_TYPES
        batch, other = (_stage(requests[name], copy) for name in ("sql", "walsender"))
        third = _stage(requests["binary"], copy_of_binary)
        # New slots of other tests would begin no later than an old one that is still there.
        for request in requests.values():
            session.execute("SELECT pg_drop_replication_slot(%s)", (request["slot_name"],))
        texts, stored = read_source(session, chosen)
        count = len(chosen)
        yield Staged(
            conninfo=conninfo,
            folder=folder,
            columns=chosen,
            copied=copied,
            texts=texts,
            stored=stored,
            values={
                "copy": _read_staged(folder, copy.manifest, count),
                "sql": _read_staged(folder, batch.manifest, count),
                "walsender": _read_staged(folder / "walsender", other.manifest, count),
                "binary": _read_staged(folder / "binary", third.manifest, len(binary)),
            },
            binary=binary,
            batches=[copy, batch],
            batches_in_binary=[copy_of_binary, third],
            no_locale=no_locale,
        )
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as administrator:
        administrator.execute(f"DROP DATABASE {_DATABASE} WITH (FORCE)")


def _requests(
    conninfo: str, folder: Path, chosen: Sequence[OracleColumn], binary: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """What is asked of each way of reading the stream; each has a slot and a folder of its own."""
    choices = {f"{TABLE}.c{place}": each.choice for place, each in enumerate(chosen) if each.choice}
    text: dict[str, Any] = {
        "conninfo": reader_conninfo(conninfo),
        "slot_name": _DATABASE,
        "publication_names": ("p",),
        "staging_uri": folder.as_uri(),
        "column_types": {**choices, **keys.COLUMN_TYPES},
    }
    return {
        "sql": text,
        "walsender": {
            **text,
            "slot_name": f"{_DATABASE}_2",
            "transport": "walsender",
            "staging_uri": (folder / "walsender").as_uri(),
            "column_types": dict(text["column_types"]),
            "options": StreamOptions(proto_version=1),
        },
        "binary": {
            **text,
            "slot_name": f"{_DATABASE}_3",
            "publication_names": ("b",),
            "staging_uri": (folder / "binary").as_uri(),
            "options": StreamOptions(binary=True),
            "column_types": {
                name: choices[name]
                for name in (f"{TABLE}.c{place}" for place in binary)
                if name in choices
            },
        },
    }


def _stage(request: dict[str, Any], before: Batch | None = None) -> Batch:
    """One batch; the copy, where none was before."""
    if before is not None:
        manifest = before.manifest
        request = {
            **request,
            "checkpoint": Checkpoint(manifest.end_lsn, manifest.system_identifier),
        }
    return Batch(*stage_batch(CaptureRequest(**request))[:2])


@pytest.fixture(scope="session")
def carried(
    staged: Staged, spark: SparkSession, lake_catalog_properties: dict[str, str]
) -> Carried:
    """The table, applied."""
    pipeline = Pipeline(
        conninfo=staged.conninfo,
        slot_name=_DATABASE,
        publication_names=("p",),
        namespace=_DATABASE,
        staging=staged.folder,
        catalog_properties=lake_catalog_properties,
        spark=spark,
    )
    return _carry(staged, pipeline, range(len(staged.columns)), staged.batches)


@pytest.fixture(scope="session")
def carried_in_binary(staged: Staged, carried: Carried) -> Carried:
    """What binary mode reads of the table, applied beside it."""
    pipeline = dataclasses.replace(
        carried.pipeline,
        slot_name=f"{_DATABASE}_3",
        publication_names=("b",),
        namespace=f"{_DATABASE}_binary",
        staging=staged.folder / "binary",
    )
    return _carry(staged, pipeline, staged.binary, staged.batches_in_binary)


@pytest.fixture(params=["text", "binary"])
def carried_in_each_mode(request: pytest.FixtureRequest, carried: Carried) -> Carried:
    if request.param == "text":
        return carried
    found: Carried = request.getfixturevalue("carried_in_binary")
    return found


def _carry(
    staged: Staged, pipeline: Pipeline, places: Sequence[int], batches: list[Batch]
) -> Carried:
    for batch in batches:
        pipeline.apply(batch)
    return Carried(
        staged=staged,
        places=places,
        batches=batches,
        values={
            "spark": read_spark(pipeline, places),
            "pyiceberg": _read_pyiceberg(pipeline, places),
        },
        rejected=_read_rejected(pipeline, len(staged.columns)),
        pipeline=pipeline,
    )


def _make_database(server: EmbeddedPostgres) -> str:
    """An empty database."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {_DATABASE}")
    return server.conninfo(_DATABASE)


def _make_table(session: psycopg.Connection[Any]) -> list[OracleColumn]:
    version = session.info.server_version // 10_000
    extensions = [name for name in EXTENSIONS if name not in missing_extensions(version)]
    for name in extensions:
        session.execute(f"CREATE EXTENSION {name} SCHEMA public")
    session.execute(TYPES)
    found = columns(version, extensions, with_xml=has_xml(session))
    defined = ", ".join(f"c{place} {each.sql_type}" for place, each in enumerate(found))
    session.execute(f'CREATE TABLE public."values" (id int PRIMARY KEY, {defined})')
    for statement in keys.SETUP:
        session.execute(statement)
    others = ", ".join(f"public.{name}" for name in keys.TABLES)
    session.execute(f'CREATE PUBLICATION p FOR TABLE public."values", {others}')
    listed = ", ".join(f"c{place}" for place in _in_binary(session))
    session.execute(f'CREATE PUBLICATION b FOR TABLE public."values" (id, {listed})')
    return found


def _in_binary(session: psycopg.Connection[Any]) -> list[int]:
    """Places of the columns that binary mode reads."""
    catalog = type_catalog(session.execute(CATALOG_QUERY).fetchall())
    types = with_attributes(catalog, session.execute(ATTRIBUTE_QUERY).fetchall())
    oids = session.execute(
        "SELECT atttypid::int8 FROM pg_attribute"
        """ WHERE attrelid = 'public."values"'::regclass AND attnum > 1 ORDER BY attnum"""
    ).fetchall()
    return [place for place, (oid,) in enumerate(oids) if can_be_sent(oid, types)]


def _hostile(session: psycopg.Connection[Any], *, with_locale: bool) -> None:
    """Give the database and the role of the pipeline defaults that would change every value that they can."""
    of_database = {**HOSTILE, "lc_monetary": german.LOCALE} if with_locale else HOSTILE
    for name, value in of_database.items():
        session.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                sql.Identifier(_DATABASE), sql.Identifier(name), sql.Literal(value)
            )
        )
    for name, value in HOSTILE_OF_ROLE.items():
        session.execute(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                sql.Identifier(ROLE),
                sql.Identifier(_DATABASE),
                sql.Identifier(name),
                sql.Literal(value),
            )
        )


def insert(
    session: psycopg.Connection[Any],
    chosen: Sequence[OracleColumn],
    first: int,
    table: str = _SOURCE,
) -> int:
    """Insert every value of every column; a column with fewer values ends in NULLs."""
    rows = max(len(each.inputs) for each in chosen) + 1
    made = ", ".join(
        f"(SELECT CASE WHEN s IS NOT NULL THEN {each.expression} END"
        " FROM (SELECT (%s::text[])[i] AS s) AS q)"
        for each in chosen
    )
    session.execute(
        f"INSERT INTO {table} SELECT i + {first - 1}, {made} FROM generate_series(1, {rows}) AS i",
        [list(each.inputs) for each in chosen],
    )
    return rows


def read_source(
    session: psycopg.Connection[Any], chosen: Sequence[OracleColumn], table: str = _SOURCE
) -> tuple[list[list[bytes | None]], list[list[bytes | None]]]:
    """The bytes of the output function, as no cast to text is, and of the send function."""
    sends = session.execute(
        "SELECT t.typsend::regproc::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = %s::regclass AND a.attnum > 1 ORDER BY a.attnum",
        (table,),
    ).fetchall()
    plain_columns = [f"c{place}" for place in range(len(chosen))]
    binary = [
        "NULL" if each.stored is None else f"encode({send}(c{place}), 'hex')"
        for place, (each, (send,)) in enumerate(zip(chosen, sends, strict=True))
    ]
    listed = ", ".join([*plain_columns, *binary])
    result = session.execute(f"SELECT {listed} FROM {table} ORDER BY id").pgresult
    assert result is not None
    found = [
        [result.get_value(row, place) for row in range(result.ntuples)]
        for place in range(2 * len(chosen))
    ]
    stored = [
        [None if each is None else bytes.fromhex(each.decode()) for each in column]
        for column in found[len(chosen) :]
    ]
    return found[: len(chosen)], stored


def read_spark(pipeline: Pipeline, places: Sequence[int], target: str = _TARGET) -> list[list[Any]]:
    session = pipeline.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    table = session.table(f"lake.{pipeline.namespace}.`{target}`").orderBy("id").toArrow()
    return _columns_of(table, [f"c{place}" for place in places])


def _read_pyiceberg(pipeline: Pipeline, places: Sequence[int]) -> list[list[Any]]:
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    table = catalog.load_table((pipeline.namespace, _TARGET)).scan().to_arrow()
    return _columns_of(table.sort_by("id"), [f"c{place}" for place in places])


def _read_staged(staging: Path, manifest: Manifest, count: int) -> list[list[Any]]:
    (table,) = (each for each in manifest.tables if each.name == TABLE)
    files = [file for version in table.versions for file in version.files]
    found = pa.concat_tables(
        [parquet.read_table(staging / file.path) for file in files], promote_options="permissive"
    )
    return _columns_of(found.sort_by(new(0)), [new(place + 1) for place in range(count)])


def _columns_of(table: pa.Table, names: Sequence[str]) -> list[list[Any]]:
    return [plain(table.column(name).combine_chunks()) for name in names]


def _read_rejected(pipeline: Pipeline, count: int) -> list[dict[int, str]]:
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    rows = catalog.load_table((pipeline.namespace, "pgoutput_rejected_values")).scan().to_arrow()
    found: list[dict[int, str]] = [{} for _ in range(count)]
    for row in rows.to_pylist():
        assert f"{row['schema_name']}.{row['table_name']}" == TABLE
        column = found[int(row["column_name"].removeprefix("c"))]
        number = int(row["key"].removeprefix('{"id": "').removesuffix('"}'))
        assert number not in column, "a value is kept once"
        column[number] = row["raw_value"]
    return found
