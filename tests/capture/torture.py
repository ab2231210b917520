"""Random sessions, read in every way: ``make torture SEED=1 RUNS=20``.

Each run lets ``random_sessions.py`` work on a database whose server streams every transaction (odd seeds;
before version 16: every large one), or every large one (even seeds, whose sessions have large
subtransactions, too). What the reference decoder makes of version 1 is what every way of staging must
stage: both transports, text and binary, streaming off and on, ``two_phase`` off and on, and by several
connections that decode small parts at once. And what the staged
changes lead to, put together row by row in Python, must be what the source holds: there columns are
known by their numbers (``numbered.py``), for their names come and go. Masks and filters are drawn, too, and
the same changes are staged with them (``masked_torture.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import tempfile
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from pyarrow import parquet

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.reference import UNCHANGED, ReferenceDecoder
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import DecodedTooEarly
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.capture import numbered
from tests.capture.masked_torture import COLUMNS, OnTheWay
from tests.capture.pgoutput.slow_reassembly import SlowReassembler
from tests.capture.pipeline_support import Source, checkpoint_with_shapes
from tests.capture.random_sessions import RandomSessions
from tests.faults.workload import SETUP
from tests.vectors.record import PINNED, peek

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.table_version import TableVersion

KEYED = ("account", "journal")
MULTISET = "bag"
_STEPS = 250


class Way(NamedTuple):
    """How the same transactions are read."""

    transport: str
    streaming: str
    two_phase: bool
    binary: bool


_WAYS = [
    Way(*each)
    for each in itertools.product(("sql", "walsender"), ("off", "on"), (False, True), (False, True))
]
#: From version 16 on.
_PARALLEL = [
    Way("sql", "parallel", two_phase=False, binary=False),
    Way("walsender", "parallel", two_phase=True, binary=True),
]
#: Connections at once and WAL of their parts.
_PARTS = ((2, 5_000), (3, 40_000))
#: Share of the steps of an even seed that are large subtransactions.
_LARGE = 0.2
#: PostgreSQL 17.11 and 18.6 fail so for any client when they decode some transactions with changes of shape
#: before these end (seeds 5, 93, 107, 109): "could not map filenumber", "pg_attribute catalog is missing".
#: When they have ended it works, so streaming is given up by itself; two_phase cannot be, and such refusals
#: are counted.
#: By name or by number.
Values = dict[Any, Any]


class Row(NamedTuple):
    """A staged change or one of the reference decoder, values as text."""

    commit_lsn: int
    seq: int
    op: str
    xid: int
    new: Values | None
    old: Values | None


def torture(conninfo: str, seed: int, folder: Path) -> dict[str, int]:
    """One run on an empty database; what was done how often.

    :raises AssertionError: two ways differ.
    """
    source = Source(conninfo, f"torture_{seed}", folder)
    (version, database) = source.execute(
        "SELECT current_setting('server_version_num')::int, current_database()"
    )[0]
    has_large = seed % 2 == 0
    setting = (
        "debug_logical_replication_streaming = immediate"
        if version >= 160000 and not has_large
        else "logical_decoding_work_mem = '64kB'"
    )
    source.execute(*SETUP, f"ALTER DATABASE {database} SET {setting}")
    tables = (*KEYED, MULTISET)
    state = {table: numbered.read_table(source, table) for table in tables}
    source.make_slot()
    checkpoint = numbered.checkpoint_now(source, tables)
    drawn = OnTheWay.drawn(random.Random(f"on the way {seed}"))  # noqa: S311
    mine = dataclasses.replace(
        source, slot_name=f"{source.slot_name}_way", staging=folder / "on_the_way"
    )
    first = mine.stage(**drawn.arguments())
    with RandomSessions(conninfo, seed, _LARGE if has_large else 0.0) as sessions:
        sessions.run(_STEPS)
    expected = reference_rows(source)
    on_the_way = _stage_on_the_way(mine, drawn, first, expected, sessions.done)
    refused = 0
    ways = [*_WAYS, *(_PARALLEL if version >= 160000 else ())]
    for number, way in enumerate(ways):
        try:
            staged = staged_rows(source, stage(source, number, way))
        except DecodedTooEarly:
            if not way.two_phase:
                raise
            refused += 1
            continue
        assert staged == expected, f"seed {seed}: {way}"
    for number, (streaming, parts) in enumerate(itertools.product(("off", "on"), _PARTS)):
        way = Way("sql", streaming, two_phase=False, binary=False)
        manifest = stage(
            source, 100 + number, way, decode_parallelism=parts[0], part_bytes=parts[1]
        )
        assert staged_rows(source, manifest) == expected, f"seed {seed}: {way}, {parts}"
    with numbered.Doubts() as doubts:
        policy = SchemaPolicy(on_unsure_column="ignore")
        manifest = stage(source, len(ways), _WAYS[0], checkpoint=checkpoint, schema_policy=policy)
    changes = staged_rows(source, manifest, by_number=True)
    in_doubt = 0
    for table in tables:
        folded = fold(table, state[table], changes.get(table, []))
        doubted = numbered.doubtful(manifest, source, table, doubts.names)
        columns = {
            number: missing
            for number, (_, _, missing) in numbered.read_columns(source, table).items()
            if number in numbered.staged_columns(manifest, table) - doubted
        }
        in_doubt += len(doubted)
        found = Counter(
            tuple(row.get(number, columns[number]) for number in columns) for row in folded
        )
        rows = numbered.read_table(source, table)
        present = Counter(tuple(row[number] for number in columns) for row in rows)
        assert found == present, f"seed {seed}: {table} is not what its changes lead to"
    source.drop_slot(source.slot_name)
    source.drop_slot(mine.slot_name)
    return {
        **sessions.done,
        **on_the_way,
        "changes": sum(map(len, expected.values())),
        "columns in doubt": in_doubt,
        "refused by the server": refused,
    }


def _stage_on_the_way(
    source: Source,
    way: OnTheWay,
    first: Manifest,
    plain: dict[str, list[Row]],
    done: Mapping[str, int],
) -> dict[str, int]:
    """Stage in all ways what the reference decoder read; return what was found how often.

    :param source: its slot and its staging area are those of ``first``.
    :param done: steps of the sessions.
    :raises AssertionError: something else is staged than the masks and filters make of it.
    """
    expected = way.expected(source, plain)
    may_be_refused = way.may_be_refused(plain, done)
    refused = compared = 0
    assert way.plain_places(source.staging, first) == []
    for number, options in enumerate(way.options()):
        slot = f"{source.slot_name}_{number}"
        source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
        try:
            manifest = source.stage(
                slot_name=slot,
                checkpoint=checkpoint_with_shapes(first),
                **options,
                **way.arguments(),
            )
        finally:
            source.drop_slot(slot)
        # Where tables are set aside, and from which commit LSN on.
        aside = {
            each.table_name.removeprefix("public."): int(Lsn.parse(each.since_lsn))
            for each in manifest.passed_over
            if each.since_lsn is not None
        }
        assert aside.keys() <= may_be_refused, (way, options, manifest.passed_over)
        refused += len(aside)
        staged = staged_rows(source, manifest)
        for table in COLUMNS:
            end = aside.get(table)
            found, wanted = (
                [row for row in rows.get(table, []) if end is None or row.commit_lsn < end]
                for rows in (staged, expected)
            )
            assert found == wanted, f"{way}, {options}, {table}"
            compared += len(found)
        assert way.plain_places(source.staging, manifest) == [], (way, options)
    return {
        "masked columns": sum(map(len, way.masks.values())),
        "filters": len(way.filters),
        "changes on the way": compared,
        "set aside": refused,
    }


def reference_rows(source: Source) -> dict[str, list[Row]]:
    """What version 1 sends, as the reference decoder reads it."""
    decoder, whole = ReferenceDecoder(), SlowReassembler(1)
    options = {"proto_version": "1", "publication_names": "p"}
    with psycopg.connect(source.conninfo, autocommit=True, options=PINNED) as session:
        bodies = peek(session, source.slot_name, options)
    found: dict[str, list[Row]] = {}
    messages = (message for body in bodies for message in whole.take(body))
    for change in (change for message in messages for change in decoder.decode(message)):
        names = [column.name for column in change.relation.columns]
        new, old = (
            None
            if values is None
            else {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in zip(names, values, strict=True)
            }
            for values in (change.new, change.old)
        )
        row = Row(change.commit_lsn, change.seq, change.op, change.xid, new, old)
        found.setdefault(change.relation.table_name, []).append(row)
    return found


def stage(source: Source, number: int, way: Way, **more: Any) -> Manifest:
    """Stage everything through a copy of the slot."""
    slot = f"{source.slot_name}_{number}"
    source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
    options = StreamOptions(streaming=way.streaming, two_phase=way.two_phase, binary=way.binary)
    try:
        manifest = source.stage(
            slot_name=slot, initial_copy="never", transport=way.transport, options=options, **more
        )
    finally:
        source.drop_slot(slot)
    assert not manifest.prepared
    return manifest


def staged_rows(
    source: Source, manifest: Manifest, *, by_number: bool = False
) -> dict[str, list[Row]]:
    """What was staged, its columns by name, or by ``attnum``."""
    found = {}
    for table in manifest.tables:
        rows = [
            _staged_row(version, row, by_number=by_number)
            for version in table.versions
            for file in version.files
            for row in parquet.read_table(source.staging / file.path).to_pylist()
        ]
        if rows:
            found[table.name.removeprefix("public.")] = sorted(rows, key=lambda row: row[:2])
    return found


def _staged_row(version: TableVersion, row: dict[str, Any], *, by_number: bool) -> Row:
    names: list[Any] = [
        each.attribute_number if by_number else each.name for each in version.columns
    ]
    new: Values | None = {
        name: UNCHANGED if row.get(f"u{place}") else _text(row[f"n{place}"])
        for place, name in enumerate(names)
        if row["op"] in {"I", "U"}
    }
    old: Values | None = {
        name: _text(row.get(f"o{place}"))
        for place, name in enumerate(names)
        if row["old_kind"] is not None
    }
    return Row(row["commit_lsn"], row["seq"], row["op"], row["xid"], new or None, old or None)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def fold(table: str, state: list[Values], changes: list[Row]) -> list[Values]:
    """What a table holds after changes, the simplest way: one row at a time, found by looking."""
    rows = [dict(row) for row in state]
    for change in changes:
        if change.op == "T":
            rows.clear()
        elif change.op == "I":
            assert change.new is not None
            rows.append(dict(change.new))
        else:
            rows.remove(before := _find(table, rows, change))
            if change.new is not None:
                kept = {
                    name: before[name] if value is UNCHANGED else value
                    for name, value in change.new.items()
                }
                rows.append(kept)
    return rows


def _find(table: str, rows: list[Values], change: Row) -> Values:
    """The row that a change is about."""
    named = change.old if change.old is not None else change.new
    assert named is not None
    # The key has number 1 and keeps it.
    names = named if table == MULTISET else (1,)
    return next(row for row in rows if all(row[name] == named[name] for name in names))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--postgres-version", type=int, default=18)
    asked = parser.parse_args()
    settings = {"fsync": "off", "max_prepared_transactions": "10"}
    installation = find_or_fetch_installation(asked.postgres_version)
    home = Path(tempfile.mkdtemp(prefix="pgoutput-torture-"))
    server = EmbeddedPostgres(home, installation=installation, settings=settings)
    total: Counter[str] = Counter()
    started = time.monotonic()
    try:
        server.start()
        for seed in range(asked.seed, asked.seed + asked.runs):
            name = f"torture_{seed}"
            with psycopg.connect(server.conninfo(), autocommit=True) as session:
                session.execute(f"CREATE DATABASE {name}")
            with tempfile.TemporaryDirectory() as folder:
                total.update(torture(server.conninfo(name), seed, Path(folder)))
    finally:
        server.destroy()
    print(f"PostgreSQL {server.version}, {asked.runs} runs from seed {asked.seed}:", dict(total))
    print(f"{time.monotonic() - started:.0f} s, no difference")


if __name__ == "__main__":
    main()
