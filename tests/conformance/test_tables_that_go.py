"""Tables that are gone at the source, by DROP TABLE or from the publication, never stop the others.

The lake keeps what it had of such a table, with all of the batch up to the first change that cannot be
followed; what comes after that is passed over, named with its LSN. What is not here: what is staged of such
a table (``tests/capture/schema/test_gone.py``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import rebuild_checkpoint
from airflow_provider_pgoutput.lake.state import open_catalog
from tests.conformance.groups import collected_warnings
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.conformance.pipeline import Pipeline


class Case(NamedTuple):
    """A table that goes."""

    make: tuple[str, ...]
    #: Statements between the first batch and the one that finds the table gone.
    go: tuple[str, ...]
    #: Rows that the lake holds afterwards.
    held: list[tuple[str | None, ...]]
    #: Whether changes are passed over.
    is_passed_over: bool = True


def _made(
    name: str, columns: str = "a int PRIMARY KEY, d int", rows: str = "(1, 1)"
) -> tuple[str, ...]:
    return (f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES {rows}")


CASES = {
    "retyped": Case(
        _made("retyped"),
        (
            "UPDATE retyped SET d = 5",
            "ALTER TABLE retyped ALTER d TYPE text",
            "INSERT INTO retyped VALUES (2, 'x')",
            "DROP TABLE retyped",
        ),
        [("1", "5")],
    ),
    "retyped_key": Case(
        _made("retyped_key"),
        (
            "INSERT INTO retyped_key VALUES (7, 7)",
            "ALTER TABLE retyped_key ALTER a TYPE text",
            "INSERT INTO retyped_key VALUES ('x', 2)",
            "DROP TABLE retyped_key",
        ),
        [("1", "1"), ("7", "7")],
    ),
    "one_transaction": Case(
        _made("one_transaction"),
        (
            "INSERT INTO one_transaction VALUES (7, 7)",
            "BEGIN",
            "INSERT INTO one_transaction VALUES (8, 8)",
            "ALTER TABLE one_transaction ALTER d TYPE text",
            "INSERT INTO one_transaction VALUES (9, 'x')",
            "DROP TABLE one_transaction",
            "COMMIT",
        ),
        # No half of a transaction is in the lake.
        [("1", "1"), ("7", "7")],
    ),
    "full_rekeyed": Case(
        (
            *_made("full_rekeyed", "a int PRIMARY KEY, d int NOT NULL"),
            "ALTER TABLE full_rekeyed REPLICA IDENTITY FULL",
        ),
        (
            "INSERT INTO full_rekeyed VALUES (7, 7)",
            "ALTER TABLE full_rekeyed DROP CONSTRAINT full_rekeyed_pkey, ADD PRIMARY KEY (d)",
            "UPDATE full_rekeyed SET a = 3 WHERE d = 1",
            "ALTER PUBLICATION p DROP TABLE full_rekeyed",
        ),
        [("1", "1")],
    ),
    "renamed": Case(
        _made("renamed"),
        (
            "INSERT INTO renamed VALUES (7, 7)",
            "ALTER TABLE renamed RENAME TO renamed_now",
            "INSERT INTO renamed_now VALUES (8, 8)",
            "DROP TABLE renamed_now",
        ),
        [("1", "1"), ("7", "7"), ("8", "8")],
        is_passed_over=False,
    ),
    "unpublished": Case(
        _made("unpublished"),
        (
            "ALTER TABLE unpublished ALTER d TYPE text",
            "INSERT INTO unpublished VALUES (2, 'x')",
            "ALTER PUBLICATION p DROP TABLE unpublished",
        ),
        [("1", "1")],
    ),
    "logged": Case(
        _made("logged"),
        (
            "UPDATE logged SET d = 5",
            "ALTER TABLE logged ALTER d TYPE text",
            "INSERT INTO logged VALUES (2, 'x')",
            "DROP TABLE logged",
        ),
        [("1", "5")],
    ),
    "plain": Case(
        _made("plain"),
        ("INSERT INTO plain VALUES (2, 2)", "DELETE FROM plain WHERE a = 1", "DROP TABLE plain"),
        [("2", "2")],
        is_passed_over=False,
    ),
}


def test_a_table_that_is_gone_keeps_its_last_good_state_and_stops_no_other(
    pipeline: Pipeline,
) -> None:
    tables = Tables(pipeline, logs=("public.logged",))
    tables.run(
        *(statement for case in CASES.values() for statement in case.make),
        *_made("t"),
        f"CREATE PUBLICATION p FOR TABLE t, {', '.join(CASES)}",
    )
    with collected_warnings() as warnings:
        manifest = tables.run(
            *(statement for case in CASES.values() for statement in case.go),
            "INSERT INTO t VALUES (2, 2)",
        )
    tables.assert_equal("t")
    said = [each for each in warnings if "are passed over" in each]
    for name, case in CASES.items():
        tables.assert_holds(name, Counter(case.held))
        named = [each for each in said if each.startswith(f"public.{name}:")]
        assert len(named) == case.is_passed_over, (name, said)
    passed_over = {each.table_name for each in manifest.passed_over}
    assert passed_over == {f"public.{name}" for name, each in CASES.items() if each.is_passed_over}
    checkpoint = pipeline.checkpoint()
    assert checkpoint is not None
    assert checkpoint.passed_over == {e.relation_oid: e.since_lsn for e in manifest.passed_over}
    tables.run("INSERT INTO t VALUES (3, 3)")
    tables.assert_equal("t")
    tables.assert_repeatable()
    # A checkpoint that is made anew from the tables' commits still knows it, from the manifests.
    assert rebuilt(pipeline).passed_over == checkpoint.passed_over


def rebuilt(pipeline: Pipeline) -> Checkpoint:
    """The checkpoint after its table was lost and made anew."""
    catalog = open_catalog(CATALOG, pipeline.catalog_properties)
    catalog.drop_table((pipeline.namespace, CHECKPOINT_TABLE))
    observed, _ = examine_pipeline(
        pipeline.conninfo,
        pipeline.slot_name,
        catalog,
        pipeline.namespace,
        StagingArea(pipeline.staging.as_uri()),
    )
    rebuild_checkpoint(catalog, pipeline.namespace, observed)
    found = pipeline.checkpoint()
    assert found is not None
    return found
