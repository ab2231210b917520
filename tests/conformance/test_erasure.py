"""Erased rows are in no byte of lake and staging area, and the pipeline goes on as if they had never been."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, HISTORY
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeUnavailable,
    PublishRefused,
    RetryableError,
)
from tests.capture.test_masks import SECRET, hashed
from tests.conformance.erased import holders, run_erasure
from tests.conformance.one_table import Lake
from tests.conformance.pipeline import CATALOG
from tests.proof.worlds import World

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

#: The smallest text of its column, so that it is in the statistics of files, and short enough to be whole.
CANARY = "!canary"
THREE = {"public.t": [{"id": 3}]}


def with_a_person(pipeline: Pipeline) -> tuple[Lake, Any]:
    """A table from which a person was deleted. A batch that waits has the person again for a moment."""
    lake = Lake(pipeline)
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, name text, tags text[])",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t SELECT g, 'name ' || g FROM generate_series(1, 5) g",
        # Two dimensions do not fit a list: the text is kept as a rejected value.
        f"UPDATE t SET name = '{CANARY} a', tags = '{{{{{CANARY} tag,b}}}}' WHERE id = 3",
    )
    lake.run()
    lake.run(f"UPDATE t SET name = '{CANARY} b' WHERE id = 3", "INSERT INTO t VALUES (6, 'six')")
    lake.run("DELETE FROM t WHERE id = 3", "UPDATE t SET name = 'x' WHERE id = 1")
    lake.execute(
        "INSERT INTO t VALUES (8, 'eight')",
        f"INSERT INTO t VALUES (3, '{CANARY} c')",
        "DELETE FROM t WHERE id = 3",
    )
    return lake, pipeline.stage()


VARIANTS: dict[str, dict[str, Any]] = {
    "upsert": {},
    "deletion vectors": {"format_version": 3},
    "copy on write": {"write_mode": "copy-on-write"},
    "soft delete": {"soft_delete": True},
    "change log": {"mode": CHANGE_LOG},
    "history": {"mode": HISTORY},
}


#: These run in ``make slow``, the others in ``make further``.
_IN_CI = {"upsert", "change log", "history"}


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(
            each,
            marks=pytest.mark.slow if each in _IN_CI else pytest.mark.further,
        )
        for each in VARIANTS
    ],
)
def test_no_byte_holds_the_person(pipeline: Pipeline, variant: str) -> None:
    pipeline.plan_options.update(VARIANTS[variant])
    lake, waiting = with_a_person(pipeline)
    assert len(holders(pipeline, CANARY)) > 4

    erased = run_erasure(pipeline, THREE)

    assert holders(pipeline, CANARY) == []
    # In the archive: copied and updated, each with a rejected value, and deleted. In what waits: two.
    in_table = {"soft delete": 1, "change log": 3, "history": 2}.get(variant, 0)
    assert erased.rows["t"] == in_table
    assert erased.rows["staged"] == 7
    assert erased.rows["pgoutput_rejected_values"] == 2
    assert (erased.staged.remains, erased.lake.remains) == ([], {})

    # The batch that waits is found under the name that XCom has.
    pipeline.apply(waiting)
    lake.run("UPDATE t SET name = 'y' WHERE id = 2", "DELETE FROM t WHERE id = 5")
    assert holders(pipeline, CANARY) == []
    if variant in {"upsert", "deletion vectors", "copy on write"}:
        assert lake.agrees("id", "name")
    if variant == "deletion vectors":
        (proof,) = World(pipeline, ("p",)).verify().tables
        assert proof.is_equal, str(proof)
        # The archive makes the same lake again.
        again = dataclasses.replace(
            pipeline.replay_job(0), in_place=False, namespace=f"{pipeline.namespace}_again"
        )
        replay(pipeline.spark, again)
        made = dataclasses.replace(pipeline, namespace=again.namespace)
        assert Lake(made).agrees("id", "name")
        assert holders(made, CANARY) == []
    # Nothing is left to do.
    assert set(run_erasure(pipeline, THREE).rows.values()) == {0}


class _Killed(Exception):
    pass


def test_after_each_kill_the_next_run_finishes(pipeline: Pipeline) -> None:
    pipeline.plan_options.update(VARIANTS["soft delete"])
    lake, waiting = with_a_person(pipeline)
    for point in (
        "erase.after_staged_files",
        "erase.after_manifest",
        "erase.after_fence",
        "erase.after_delete",
        "erase.after_rewrite",
        "erase.after_references",
        "erase.after_expire",
    ):

        def kill(reached: str, point: str = point) -> None:
            if reached == point:
                raise _Killed

        with crash_points.watched(kill), pytest.raises(_Killed):
            run_erasure(pipeline, THREE)
    run_erasure(pipeline, THREE)
    assert holders(pipeline, CANARY) == []
    pipeline.apply(waiting)
    assert 3 not in [row[0] for row in lake.rows("id")]


def test_an_apply_at_work_makes_the_task_come_again(pipeline: Pipeline) -> None:
    """It has read the staged files already. So it is refused, and what it wrote must not stay."""
    lake, waiting = with_a_person(pipeline)

    def erase_beside(reached: str) -> None:
        if reached == "apply.after_prepare":
            with pytest.raises(PublishRefused, match="while no apply is at work"):
                run_erasure(pipeline, THREE)

    with crash_points.watched(erase_beside), pytest.raises(RetryableError):
        pipeline.apply(waiting)
    pipeline.apply(waiting)
    run_erasure(pipeline, THREE)
    assert holders(pipeline, CANARY) == []
    assert lake.agrees("id", "name")


def test_an_apply_that_reads_a_batch_meanwhile_tries_again(pipeline: Pipeline) -> None:
    """Its manifest names files that are gone. That is no damage, and the next try reads the new one."""
    lake, waiting = with_a_person(pipeline)

    def erase_beside(reached: str) -> None:
        if reached == "erase.manifest_was_read":
            run_erasure(pipeline, THREE)

    with (
        crash_points.watched(erase_beside),
        pytest.raises(LakeUnavailable, match="was replaced while"),
    ):
        pipeline.apply(waiting)
    pipeline.apply(waiting)
    assert lake.agrees("id", "name")


def test_a_job_whose_task_has_ended_deletes_no_row(pipeline: Pipeline) -> None:
    """By now the source may have inserted a row with the key again."""
    lake, waiting = with_a_person(pipeline)
    pipeline.apply(waiting)
    lake.run(f"INSERT INTO t VALUES (3, '{CANARY}')")
    rows = lake.rows("id")
    claim = pipeline.staging / layout.erasure_claim_path(pipeline.slot_name)

    def end_the_task(reached: str) -> None:
        if reached == "erase.after_fence":
            claim.unlink(missing_ok=True)

    with (
        crash_points.watched(end_the_task),
        pytest.raises(PublishRefused, match="began this erasure has ended"),
    ):
        run_erasure(pipeline, THREE)
    assert lake.rows("id") == rows


def test_what_others_hold_on_to_is_named(pipeline: Pipeline) -> None:
    """Hashed keys are given plain, and a tag of somebody else keeps what it names."""
    pipeline.capture_options.update(columns={"public.t.email": "hash"}, mask_secret=SECRET)
    lake = Lake(pipeline)
    lake.execute(
        "CREATE TABLE t(email text PRIMARY KEY, name text)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t VALUES ('a@x.org', '{CANARY}'), ('b@x.org', 'b')",
    )
    lake.run()
    name = f"{CATALOG}.{pipeline.namespace}.t"
    pipeline.spark.sql(f"ALTER TABLE {name} CREATE TAG theirs")
    lake.run("DELETE FROM t WHERE email = 'a@x.org'")
    rows = {"public.t": [{"email": "a@x.org"}]}
    with pytest.raises(ConfigurationError, match="not the secret"):
        run_erasure(pipeline, rows)
    erased = run_erasure(pipeline, rows, SECRET)
    assert erased.staged.rows == 2
    assert erased.lake.remains == {
        f"{pipeline.namespace}.t": ["tag theirs of somebody else, until it is removed"]
    }
    assert all(pipeline.staging.name not in each for each in holders(pipeline, CANARY))
    pipeline.spark.sql(f"ALTER TABLE {name} DROP TAG theirs")
    run_erasure(pipeline, rows, SECRET)
    assert holders(pipeline, CANARY, hashed("a@x.org")) == []
