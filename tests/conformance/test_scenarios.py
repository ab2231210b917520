"""PostgreSQL to Iceberg, end to end, judged by the source itself and by what each scenario demands.

Every scenario runs with one batch for all, and every batch is applied a second time. The same WAL is
staged in every other way and compared there; some also with one batch applied for each transaction, to
copy-on-write tables.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.jobs import COPY_ON_WRITE
from tests.conformance.compare import (
    connect,
    delete_files,
    difference,
    lake_fields,
    quoted,
    read_arrow,
    read_lake,
    read_source,
    read_with_pyiceberg,
    source_columns,
)
from tests.conformance.groups import (
    ONE_BATCH,
    PER_TRANSACTION,
    PLANS,
    VARIANTS,
    GroupRun,
    VariantRun,
)
from tests.conformance.pipeline import CATALOG
from tests.conformance.scenario import GROUPS
from tests.conformance.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.conformance.scenario import Scenario
    from tests.conformance.ways import Staged


every_scenario = pytest.mark.parametrize(
    "scenario", [pytest.param(each, id=each.id) for each in SCENARIOS]
)


def _mark_of(scenario: Scenario, variant: str) -> tuple[pytest.MarkDecorator, ...]:
    """One batch for each transaction is another way to the same rows, and takes a second for each of them."""
    if variant == ONE_BATCH:
        return ()
    applies = GROUPS[scenario.group].applies_each_transaction
    return (pytest.mark.slow if applies else pytest.mark.exhaustive,)


def every_variant_of(scenarios: Iterable[Scenario]) -> pytest.MarkDecorator:
    """Each scenario with each pipeline that applies what it reads of it."""
    return pytest.mark.parametrize(
        ("scenario", "variant"),
        [
            pytest.param(
                each,
                variant,
                id=f"{each.id}-{variant}",
                marks=_mark_of(each, variant),
            )
            for each in scenarios
            for variant in VARIANTS
        ],
    )


every_variant = every_variant_of(SCENARIOS)
#: Scenarios in which rows or values of the source changed without a change in the stream. Others differ in
#: what a publication or the lake cannot hold, and no verification counts that.
LAKE_DIFFERS = {"C16", "C42", "C48", "C55"}


@every_scenario
def test_a_verification_agrees_with_the_judgement(
    group_run: Callable[[Scenario], GroupRun], scenario: Scenario
) -> None:
    """It finds a table that differs where the scenario says so, and nowhere else."""
    proof = group_run(scenario).variants[ONE_BATCH].proof
    assert proof is not None
    tables = [each for each in proof.tables if each.table.startswith(f"{scenario.schema}.")]
    different = {each.table for each in tables if each.is_different}
    assert bool(different) == (scenario.id in LAKE_DIFFERS), [str(each) for each in tables]


def target(run: VariantRun, scenario: Scenario, table: str) -> str:
    return run.pipeline.plan(run.copy).target_name(scenario.schema_of_tables, table)


def identifier(run: VariantRun, scenario: Scenario, table: str) -> str:
    return quoted(CATALOG, run.pipeline.namespace, target(run, scenario, table))


def changes_of(manifest: Manifest, scenario: Scenario) -> int:
    return sum(
        table.counts.changes
        for table in manifest.tables
        if table.schema_name == scenario.schema_of_tables
    )


def rows_of(scenario: Scenario, staged: Staged) -> Staged:
    begins = scenario.schema_of_tables + "."
    return {name: rows for name, rows in staged.items() if name.startswith(begins)}


@every_variant
def test_scenario(
    scenario: Scenario,
    variant: str,
    spark: SparkSession,
    group_run: Callable[[Scenario], GroupRun],
) -> None:
    """The lake holds what the scenario demands, and what the source holds; all engines agree."""
    group = group_run(scenario)
    run = group.variants[variant]
    for table in scenario.absent_tables:
        assert target(run, scenario, table) not in run.snapshots
    with connect(group.conninfo) as session:
        for table, rows in scenario.expected.items():
            name = identifier(run, scenario, table)
            schema = scenario.schema_of_tables
            wanted_columns = source_columns(session, schema, table)
            fields = lake_fields(spark, name)
            absent, surplus = set(scenario.absent_columns), set(scenario.surplus_columns)
            assert set(fields) == (set(wanted_columns) - absent) | surplus, table
            chosen = [fields[column] for column in wanted_columns if column not in absent]
            found = read_lake(spark, name, chosen)
            assert not difference(found, Counter(rows)), table
            if not scenario.differs_because:
                assert not difference(found, read_source(session, schema, table, chosen)), table
            other = read_with_pyiceberg(run.pipeline, target(run, scenario, table))
            assert not difference(read_arrow(spark.table(name).toArrow()), other), table
            if PLANS[variant]["write_mode"] == COPY_ON_WRITE:
                assert not delete_files(run.pipeline, target(run, scenario, table)), table


@every_variant
def test_applied_twice(
    scenario: Scenario, variant: str, group_run: Callable[[Scenario], GroupRun]
) -> None:
    """Applying every batch again, the copy first, makes no snapshot on any table."""
    run = group_run(scenario).variants[variant]
    for table in scenario.expected:
        assert target(run, scenario, table) in run.snapshots
    assert run.snapshots_after_second_time == run.snapshots


@every_scenario
def test_every_change_is_counted(
    scenario: Scenario, group_run: Callable[[Scenario], GroupRun]
) -> None:
    """A batch counts each change of the stream; a limit ends it after one transaction."""
    variants = group_run(scenario).variants
    whole = [changes_of(batch.manifest, scenario) for batch in variants[ONE_BATCH].batches]
    assert whole == [sum(scenario.changes)]
    if PER_TRANSACTION not in variants:
        return  # There the transactions are told apart by what was staged, and by the exhaustive tests.
    single = variants[PER_TRANSACTION].batches
    # A batch with a copy goes at least to the point of the copy.
    assert all(
        batch.manifest.transactions <= 1
        for batch in single
        if not any(table.copy_lsn for table in batch.manifest.tables)
    )
    counted = [changes_of(batch.manifest, scenario) for batch in single]
    assert [count for count in counted if count] == list(scenario.changes)


@every_scenario
def test_every_way_stages_the_same(
    scenario: Scenario, group_run: Callable[[Scenario], GroupRun]
) -> None:
    """Transport, protocol version, streaming, form of values and limits change nothing of what is staged."""
    group = group_run(scenario)
    wanted = rows_of(scenario, group.variants[ONE_BATCH].staged)
    assert sum(map(len, wanted.values())) == sum(scenario.changes)
    if PER_TRANSACTION in group.variants:
        assert rows_of(scenario, group.variants[PER_TRANSACTION].staged) == wanted
    for way, staged in group.staged.items():
        if isinstance(staged, Exception):
            raise AssertionError(way) from staged
        assert rows_of(scenario, staged) == wanted, way


@every_variant_of(each for each in SCENARIOS if each.warning)
def test_a_warning_names_the_table(
    scenario: Scenario, variant: str, group_run: Callable[[Scenario], GroupRun]
) -> None:
    """What the lake cannot follow is said before it happens."""
    warnings = group_run(scenario).variants[variant].warnings
    assert any(all(word in warning for word in scenario.warning) for warning in warnings), warnings


@pytest.mark.parametrize(
    "scenario", [pytest.param(each, id=each.id) for each in SCENARIOS if each.dml_sqlstate]
)
def test_the_publisher_refuses(
    scenario: Scenario, group_run: Callable[[Scenario], GroupRun]
) -> None:
    """The scenario's last statement fails at the source, as it is meant to."""
    assert group_run(scenario).refused[scenario.id] == scenario.dml_sqlstate


@every_variant_of(each for each in SCENARIOS if each.rejected)
def test_values_without_a_place_are_kept_as_text(
    scenario: Scenario,
    variant: str,
    spark: SparkSession,
    group_run: Callable[[Scenario], GroupRun],
) -> None:
    """What is NULL in the lake and not in the source is in the side table, once."""
    run = group_run(scenario).variants[variant]
    side = spark.table(quoted(CATALOG, run.pipeline.namespace, "pgoutput_rejected_values"))
    found = Counter(
        (row.table_name, row.column_name, row.key, row.raw_value)
        for row in side.where(side.schema_name == scenario.schema).collect()
    )
    wanted = Counter(
        (each.table, each.column, each.key, each.raw_value) for each in scenario.rejected
    )
    assert found == wanted
    counted = sum(
        table.counts.rejected
        for batch in run.batches
        for table in batch.manifest.tables
        if table.schema_name == scenario.schema
    )
    assert counted == len(scenario.rejected)
