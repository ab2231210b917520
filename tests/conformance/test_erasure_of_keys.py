"""Erased rows whose keys are in the pipeline's own tables: held rows, and the record of verifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.erase import ErasureResult
from airflow_provider_pgoutput.batch.checkpoint import PROOFS_TABLE, QUARANTINE_TABLE
from airflow_provider_pgoutput.proof.record import record_proof
from tests.conformance.erased import holders, run_erasure
from tests.conformance.one_table import Lake
from tests.conformance.pipeline import CATALOG
from tests.conformance.test_erasure import CANARY
from tests.faults.processes import erase_in_process
from tests.proof.worlds import World

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.jobs import ErasureJob
    from quickstart.spark import LocalLake
    from tests.conformance.pipeline import Pipeline

_PERSON = f"{CANARY} key"
_ROWS = {"public.t": [{"email": _PERSON}]}


def _with_keys_of_a_person(pipeline: Pipeline) -> Lake:
    """The person's row is in the quarantine, and a verification names its key."""
    pipeline.plan_options.update(on_row_refused="quarantine")
    lake, world = Lake(pipeline), World(pipeline, ("p",))
    lake.execute(
        "CREATE TABLE t(email text PRIMARY KEY, name text, note text)",
        # PostgreSQL does not send such a value again with an update of another column.
        "ALTER TABLE t ALTER note SET STORAGE EXTERNAL",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t VALUES ('{_PERSON}', 'n', repeat('x', 5000)), ('b@x.org', 'b', 'y')",
    )
    lake.run()
    world.damage(f"DELETE FROM {{}}.t WHERE email = '{_PERSON}'")
    lake.run(f"UPDATE t SET name = 'new' WHERE email = '{_PERSON}'")
    record_proof(_catalog(pipeline), pipeline.namespace, world.verify(keys_shown=5))
    return lake


def _catalog(pipeline: Pipeline) -> Catalog:
    return load_catalog(CATALOG, **pipeline.catalog_properties)


@pytest.mark.slow
def test_no_byte_holds_the_key(pipeline: Pipeline) -> None:
    lake = _with_keys_of_a_person(pipeline)
    held = holders(pipeline, CANARY)
    for table in (QUARANTINE_TABLE, PROOFS_TABLE):
        assert any(table in each for each in held), held
    lake.run(f"DELETE FROM t WHERE email = '{_PERSON}'", "UPDATE t SET name = 'c'")
    assert any(PROOFS_TABLE in each for each in holders(pipeline, CANARY))

    erased = run_erasure(pipeline, _ROWS)

    assert erased.rows[PROOFS_TABLE] == 1
    assert (erased.staged.remains, erased.lake.remains) == ([], {})
    assert holders(pipeline, CANARY) == []
    lake.run("INSERT INTO t VALUES ('d@x.org', 'd', 'y')")
    assert lake.agrees("email", "name", "note")
    (proof,) = World(pipeline, ("p",)).verify().tables
    assert proof.is_equal, str(proof)


@pytest.mark.further
def test_a_row_that_is_held_still_goes(pipeline: Pipeline) -> None:
    """The source has deleted the person, and the lake does not know it yet."""
    lake = _with_keys_of_a_person(pipeline)
    lake.execute(f"DELETE FROM t WHERE email = '{_PERSON}'")

    erased = run_erasure(pipeline, _ROWS)

    assert erased.rows[QUARANTINE_TABLE] == 1
    assert holders(pipeline, CANARY) == []


@pytest.mark.further
@pytest.mark.submit
def test_a_driver_of_spark_submit_erases(pipeline: Pipeline, local_lake: LocalLake) -> None:
    """The whole way of the job: its file, the program that Spark starts, and its answer."""
    lake = _with_keys_of_a_person(pipeline)
    lake.run(f"DELETE FROM t WHERE email = '{_PERSON}'")

    def erase_in_lake(job: ErasureJob) -> ErasureResult:
        found = erase_in_process(pipeline, job, local_lake)
        assert found["status"] == "applied", found
        return ErasureResult(**{each: found[each] for each in ("tables", "remains")})

    erased = run_erasure(pipeline, _ROWS, erase_in_lake=erase_in_lake)

    assert erased.rows[PROOFS_TABLE] == 1
    assert (erased.staged.remains, erased.lake.remains) == ([], {})
    assert holders(pipeline, CANARY) == []
