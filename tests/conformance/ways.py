"""Stage the WAL of a group in every way there is: what is staged has to be the same.

A way is a transport, a protocol version that the server has, a value of ``streaming`` that this version
has, and where the group is about them ``two_phase`` and ``binary`` on and off. Once three connections
decode small parts at the same time, and once the publications are named in the other order. Each way
reads a copy of the pipeline's slot to the end, while the server streams whatever it may. What is not
here: the comparison.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any

from psycopg import sql

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.pipeline_support import Source
from tests.conformance.compare import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.conformance.pipeline import Batch, Pipeline
    from tests.conformance.scenario import Group

TRANSPORTS = ("sql", "walsender")
#: By protocol version: the values of ``streaming`` that it has.
STREAMING = {
    1: ("off",),
    2: ("off", "on"),
    3: ("off", "on"),
    4: ("off", "on", "parallel"),
}
IN_PARTS = {"decode_parallelism": 3, "part_bytes": 4_000}
#: Staged changes as text, without what is NULL, in the order of the stream, by table.
Staged = dict[str, list[str]]
#: Names of the columns that say whether a value is unchanged TOAST, see ``batch/changes.py``.
_UNCHANGED = re.compile(r"u\d+")


def newest_version(major: int) -> int:
    """The newest protocol version that a server has."""
    return 4 if major >= 16 else 3


def ways_of(
    group: Group, major: int, publication_names: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """Arguments of a capture, by the name of the way.

    :param publication_names: those that are read, in the order of all other ways.
    """
    ways: dict[str, dict[str, Any]] = {}
    versions = range(1, newest_version(major) + 1)
    for transport, version, two_phase, binary in itertools.product(
        TRANSPORTS,
        versions,
        {False, group.options.two_phase},
        {False, group.options.binary},
    ):
        for streaming in STREAMING[version]:
            if two_phase and version < 3:
                continue
            words = [transport, f"version_{version}", f"streaming_{streaming}"]
            words += ["two_phase"] * two_phase + ["binary"] * binary
            options = StreamOptions(version, streaming, two_phase=two_phase, binary=binary)
            way = {"transport": transport, "options": options}
            ways["-".join(words)] = way
            if _is_cut(group, transport, version, streaming, major):
                ways["-".join([*words, "each_transaction"])] = {**way, "max_changes": 1}
    newest = StreamOptions(newest_version(major), "on")
    ways["sql-in_parts"] = {"transport": "sql", "options": newest, **IN_PARTS}
    other_order = {"publication_names": publication_names[::-1]}
    ways["sql-other_order"] = {"transport": "sql", "options": newest, **other_order}
    return ways


def _is_cut(group: Group, transport: str, version: int, streaming: str, major: int) -> bool:
    """Whether a way is repeated with a batch for each transaction, which reads the WAL as often."""
    if group.applies_each_transaction:
        return False  # Its second pipeline is such a way, and what that stages is compared, too.
    return transport == "sql" and version == newest_version(major) and streaming == "on"


def stage_every_way(
    pipeline: Pipeline, group: Group, major: int, folder: Path
) -> dict[str, Staged | Exception]:
    """Stage in every way up to the end of the WAL; of a way that failed, how it did."""
    target = pipeline.flush_lsn()
    found: dict[str, Staged | Exception] = {}
    with streamed(pipeline, group, major):
        for way, options in ways_of(group, major, pipeline.publication_names).items():
            try:
                batches = _stage(pipeline, way, options, target, folder / way)
                found[way] = staged_rows(batches, folder / way)
            except Exception as error:
                found[way] = error
    return found


def _keep_last(staging: Path, position: Checkpoint, folder: Path, slot_name: str) -> Checkpoint:
    """Give another slot the manifest of the batch that filled the lake; the checkpoint that names it."""
    assert position.batch_id is not None
    (path,) = staging.glob(f"*-{position.batch_id[:16]}.json")
    sealed = dataclasses.replace(Manifest.from_json(path.read_bytes()), slot_name=slot_name)
    name = layout.manifest_path(slot_name, sealed.start_lsn, sealed.end_lsn, sealed.batch_id)
    StagingArea(folder.as_uri()).write_whole(name, sealed.to_json().encode())
    return dataclasses.replace(position, batch_id=sealed.batch_id)


def _stage(
    pipeline: Pipeline, way: str, options: dict[str, Any], target: Lsn, folder: Path
) -> list[Batch]:
    slot_name = "a_way_of_" + pipeline.slot_name
    position = pipeline.checkpoint()
    assert position is not None
    batches: list[Batch] = []
    with connect(pipeline.conninfo) as session:
        session.execute(
            "SELECT pg_copy_logical_replication_slot(%s, %s)", (pipeline.slot_name, slot_name)
        )
    # By what the tables were published when the lake was filled.
    manifests = pipeline.staging / layout.manifest_folder(pipeline.slot_name)
    position = _keep_last(manifests, position, folder, slot_name)
    try:
        while not batches or batches[-1].manifest.end_lsn < target:
            named = {
                "slot_name": slot_name,
                "staging_uri": folder.as_uri(),
                "checkpoint": position,
            }
            batches.append(pipeline.stage(**{**named, **options}))
            manifest = batches[-1].manifest
            position = Checkpoint(manifest.end_lsn, manifest.system_identifier)
            # Otherwise every batch is decoded from the WAL of the first.
            advance_slot(pipeline.reader, slot_name, manifest.end_lsn)
    finally:
        Source(pipeline.conninfo, slot_name, folder).drop_slot(slot_name)
    return batches


@contextlib.contextmanager
def streamed(pipeline: Pipeline, group: Group, major: int) -> Iterator[None]:
    """Let the server stream every transaction (version 15: every one past 64 kB) for a while."""
    with connect(pipeline.conninfo) as session:
        if not group.streams:
            session.execute(stream_everything(session.info.dbname, major))
        yield
        if not group.streams:
            session.execute(
                sql.SQL("ALTER DATABASE {} RESET {}").format(
                    sql.Identifier(session.info.dbname), sql.Identifier(_setting(major)[0])
                )
            )


def stream_everything(database: str, major: int) -> sql.Composed:
    """The statement that makes the server stream whatever it may in a database."""
    name, value = _setting(major)
    return sql.SQL("ALTER DATABASE {} SET {} = {}").format(
        sql.Identifier(database), sql.Identifier(name), sql.Literal(value)
    )


def _setting(major: int) -> tuple[str, str]:
    if major >= 16:
        return "debug_logical_replication_streaming", "immediate"
    return "logical_decoding_work_mem", "64kB"


def staged_rows(batches: list[Batch], folder: Path) -> Staged:
    """All staged changes of tables that changed, by ``schema.table``."""
    found: Staged = {}
    source = Source("", "", folder)
    for batch in batches:
        for table in batch.manifest.tables:
            rows = source.changes(batch.manifest, table.name)
            if rows:
                found.setdefault(table.name, []).extend(map(_written_out, rows))
    return found


def _written_out(row: dict[str, Any]) -> str:
    """A row as text, in which NaN is NaN and 0 is not -0.

    A file without one unchanged TOAST value, or one old value, has no column for them.
    """
    said = {
        name: value
        for name, value in sorted(row.items())
        if value is not None and not (value is False and _UNCHANGED.fullmatch(name))
    }
    return repr(said)
