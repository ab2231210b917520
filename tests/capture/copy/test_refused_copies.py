"""Copies that are asked for and refused: what becomes of the table, and of a batch that answered so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.copy import stage as copying
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import (
    MissingPrivilege,
    SlotAheadOfCheckpoint,
    SnapshotLost,
    SourceError,
    ValueRefused,
)
from tests.capture.staging.test_sealed_copies import KILLED, with_tables
from tests.capture.test_staging_set_aside import ASIDE, Lake, entries, limited, rows

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

VALUES: dict[str, Any] = {"publication_names": ("q",), "value_policy": {"decimal": "fail"}}


@pytest.fixture
def lake(source: Source) -> Lake:
    """A lake that follows ``v``, which has a row that no copy takes: it came before the policy."""
    source.execute(
        "CREATE TABLE v (a int PRIMARY KEY, d numeric(5, 2))",
        "INSERT INTO v VALUES (1, 'NaN')",
        "CREATE PUBLICATION q FOR TABLE v, t",
    )
    lake = Lake()
    lake.take(source.stage(publication_names=("q",), **ASIDE))
    source.execute("INSERT INTO v VALUES (2, 2)", "INSERT INTO t VALUES (2, 'x')")
    return lake


@pytest.mark.parametrize("why", ["value", "right"])
def test_a_refused_copy_leaves_a_followed_table_followed(
    source: Source, lake: Lake, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The table in the lake is right, so there is no reason to let go of it."""
    asked: dict[str, Any] = {**VALUES, "copy_tables": ("public.v",)}
    error: type[Exception] = ValueRefused
    if why == "right":
        asked["conninfo"], error = limited(source), MissingPrivilege
        source.execute("REVOKE SELECT ON v FROM limited")
    with pytest.raises(error):
        source.stage(checkpoint=lake.checkpoint, **asked)
    manifest = source.stage(checkpoint=lake.checkpoint, **asked, **ASIDE)
    assert (rows(source, manifest, "v"), rows(source, manifest, "t")) == ([2], [2])
    assert manifest.passed_over == ()
    assert [each.error for each in manifest.refused_copies] == [error.__name__]
    assert batch_xcom(manifest, "")["refused_copies"].keys() == {"public.v"}
    assert "public.v is not copied, as copy_tables asks. It is followed as before." in caplog.text
    lake.take(manifest)
    assert lake.aside == {}
    source.execute("INSERT INTO v VALUES (3, 3)")
    manifest = source.stage(checkpoint=lake.checkpoint, **VALUES, **ASIDE)
    assert (rows(source, manifest, "v"), manifest.refused_copies) == ([3], ())


def test_a_table_that_needs_the_refused_copy_is_set_aside(source: Source, lake: Lake) -> None:
    """A change came that cannot be followed without a copy."""
    source.execute(
        "ALTER TABLE v ADD e float8 NOT NULL DEFAULT random()", "INSERT INTO v VALUES (3, 3)"
    )
    policy = SchemaPolicy(on_unknown_default="copy")
    options: dict[str, Any] = {**VALUES, **ASIDE, "schema_policy": policy}
    asked: dict[str, Any] = {**options, "copy_tables": ("public.v",)}
    manifest = source.stage(checkpoint=lake.checkpoint, **asked)
    assert [each.error for each in manifest.refused_copies] == ["ValueRefused"]
    assert [each.error for each in manifest.passed_over] == ["ValueRefused"]
    assert rows(source, manifest, "v") == []
    assert rows(source, manifest, "t") == [2]
    lake.take(manifest)
    assert lake.aside == {"v": "ValueRefused"}
    source.execute("DELETE FROM v WHERE a = 1")
    manifest = source.stage(checkpoint=lake.checkpoint, **asked)
    assert [each["a"] for each in source.copied(manifest, "public.v")] == [2, 3]


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_batch_that_refused_a_copy_answered_it(
    source: Source, lake: Lake, is_followed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot is past the batch, so nobody can stage it again."""
    if not is_followed:
        source.execute("INSERT INTO v VALUES (3, 'NaN')")
        lake.take(source.stage(checkpoint=lake.checkpoint, **VALUES, **ASIDE))
        assert lake.aside == {"v": "ValueRefused"}
        source.execute("INSERT INTO t VALUES (3, 'x')")
    options: dict[str, Any] = {**VALUES, **ASIDE, "advance": AFTER_STAGE}
    asked = {**options, "copy_tables": ("public.v",)}
    checkpoint = lake.checkpoint
    manifest = source.stage(checkpoint=checkpoint, **asked)
    assert source.confirmed() == str(manifest.end_lsn)
    assert source.stage(checkpoint=checkpoint, **asked).batch_id == manifest.batch_id
    assert "It lacks the copy of public.v, which was refused." in caplog.text
    with pytest.raises(SlotAheadOfCheckpoint):
        source.stage(checkpoint=checkpoint, **{**asked, "copy_tables": ("public.t",)})
    lake.take(manifest)
    source.execute("DELETE FROM v WHERE d = 'NaN'")
    manifest = source.stage(checkpoint=lake.checkpoint, **asked)
    assert [each["a"] for each in source.copied(manifest, "public.v")] == [2]
    lake.take(manifest)
    assert lake.aside == {}


@pytest.mark.parametrize("point", ["stage.after_manifest", "stage.before_manifest"])
def test_a_kill_loses_no_answer(source: Source, lake: Lake, point: str) -> None:
    """An earlier attempt sealed the same range without the request."""
    options: dict[str, Any] = {**VALUES, **ASIDE, "checkpoint": lake.checkpoint}
    before = source.stage(**options, advance="after_apply")
    asked: dict[str, Any] = {**options, "copy_tables": ("public.v",), "advance": AFTER_STAGE}

    def kill(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with crash_points.watched(kill), pytest.raises(KeyboardInterrupt):
        source.stage(**asked)
    manifest = source.stage(**asked)
    assert manifest.batch_id != before.batch_id
    assert [each.table_name for each in manifest.refused_copies] == ["public.v"]
    assert source.stage(**asked).batch_id == manifest.batch_id


#: Changes of ``t`` that a copy from before them does not help to follow.
AFTER = {
    "type": (
        "ALTER TABLE t ALTER b TYPE bytea USING b::bytea",
        "UPDATE t SET b = 'new' WHERE a = 1",
    ),
    "key": (
        "ALTER TABLE t REPLICA IDENTITY FULL, ALTER b SET NOT NULL",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, b)",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT, ALTER b TYPE varchar(10) USING left(b, 10)",
        "UPDATE t SET b = 'new' WHERE a = 1",
    ),
}


@pytest.mark.parametrize("answer", ["fail", "set_aside"])
@pytest.mark.parametrize("change", AFTER)
def test_a_change_after_the_copy_that_cannot_be_followed(
    source: Source, answer: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``t`` is sealed, and changes before the other tables are read."""
    with_tables(source)
    options: dict[str, Any] = {"copy_connections": 1, "on_table_refused": answer}
    assert source.stage_in_process("stage.after_copied_table:1", **options) == KILLED
    take: Any = vars(copying)["create_slot"]

    def altered(*arguments: Any, **named: Any) -> Any:
        source.execute(*AFTER[change])
        return take(*arguments, **named)

    lake = Lake()
    with monkeypatch.context() as patched:
        patched.setattr(copying, "create_slot", altered)
        if answer == "fail":
            with pytest.raises(SnapshotLost):
                source.stage(**options)
            return
        manifest = source.stage(**options)
    copied = {each.name: each.counts.copied for each in manifest.tables}
    assert copied["public.u"] == source.execute("SELECT count(*) FROM u")[0][0]
    checkpoint = lake.take(manifest)
    assert lake.aside == {"t": "SnapshotLost"}
    # The next run copies it again, as another try would have done.
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert len(source.copied(manifest, "public.t")) == 3000
    lake.take(manifest)
    assert lake.aside == {}


def test_a_table_whose_file_is_missing_is_no_lost_slot(source: Source) -> None:
    """SQLSTATE 58P01, which a removed segment of WAL has, too. The server even says that it is empty."""
    source.execute(
        "CREATE TABLE torn (a int PRIMARY KEY)",
        "INSERT INTO torn SELECT generate_series(1, 1000)",
        "ANALYZE torn",
        "INSERT INTO t VALUES (1, 'x')",
        "CREATE PUBLICATION q FOR TABLE torn, t",
        "CHECKPOINT",
    )
    ((folder, file),) = source.execute(
        "SELECT current_setting('data_directory'), pg_relation_filepath('torn')"
    )
    (Path(folder) / file).unlink()
    with pytest.raises(SourceError, match="58P01") as caught:
        source.stage(publication_names=("q",), on_slot_lost="copy")
    assert caught.value.table == "public.torn"
    manifest = source.stage(publication_names=("q",), **ASIDE)
    assert [each["a"] for each in source.copied(manifest, "public.t")] == [1]
    assert [(e.table_name, e.error) for e in manifest.passed_over] == [
        ("public.torn", "SourceError")
    ]
    assert entries(manifest).keys() == {"torn"}
