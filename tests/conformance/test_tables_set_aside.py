"""Tables that the stage task sets aside, to the lake: the others go on, and a copy brings them back.

What is not here: what is staged of them (``tests/capture/test_staging_set_aside.py``), and tables that apply
sets aside (``tests/apply/test_set_aside.py``).
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.lake.state import (
    open_catalog,
    read_recorded,
    tables_set_aside,
)
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.conformance.test_tables_that_go import rebuilt

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from tests.conformance.pipeline import Pipeline

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tables_set_aside.md"
GOOD = ("good", "good_log")
BAD = ("value", "value_log", "key", "again")
#: Trouble of each table, after a good change.
TROUBLE = (
    "INSERT INTO value VALUES (3, 'NaN')",
    "INSERT INTO value_log VALUES (3, 'NaN')",
    "ALTER TABLE key ALTER d SET NOT NULL",
    "CREATE UNIQUE INDEX key_d ON key (d)",
    "ALTER TABLE key REPLICA IDENTITY USING INDEX key_d",
    "UPDATE key SET d = 7 WHERE a = 2",
    "DROP TABLE again",
    "CREATE TABLE again (a int PRIMARY KEY, d numeric(5, 2))",
    "ALTER PUBLICATION p ADD TABLE again",
    "INSERT INTO again VALUES (5, 5)",
)


class Killed(BaseException):
    """Ends a task as a kill would."""


def killed_at(point: str, tables: Tables) -> None:
    """Run the pipeline until this point, where its process dies."""

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        tables.run()


def aside(pipeline: Pipeline) -> dict[str, SetAside]:
    """What is set aside, as each reader of the checkpoint table says it."""
    checkpoint = pipeline.checkpoint()
    assert checkpoint is not None
    catalog = open_catalog(CATALOG, pipeline.catalog_properties)
    recorded = read_recorded(catalog, pipeline.namespace, pipeline.slot_name)
    assert tables_set_aside(recorded) == checkpoint.set_aside
    return {each.table_name.removeprefix("public."): each for each in checkpoint.set_aside.values()}


def test_tables_that_cannot_be_staged_stop_no_other_and_come_back(pipeline: Pipeline) -> None:
    answer = {"on_table_refused": "set_aside"}
    pipeline.capture_options.update(
        answer,
        value_policy={"decimal": "fail"},
        key_columns={"public.key": ("a",)},
    )
    pipeline.plan_options.update(answer)
    tables = Tables(pipeline, logs=("public.good_log", "public.value_log"))
    every = (*GOOD, *BAD)
    # At the first run the copy of one table is refused, too.
    tables.run(
        *(
            f"CREATE TABLE {name} (a int PRIMARY KEY, d numeric(5, 2))"
            for name in (*every, "first")
        ),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in every),
        "INSERT INTO first VALUES (1, 'NaN')",
        # Apply refuses its name.
        "CREATE TABLE pgoutput_messages (a int PRIMARY KEY)",
        f"CREATE PUBLICATION p FOR TABLE first, pgoutput_messages, {', '.join(every)}",
    )
    needs_copy = {name: each.needs_copy for name, each in aside(pipeline).items()}
    assert needs_copy == {"first": True, "pgoutput_messages": False}
    tables.assert_equal(*every)

    tables.execute(
        *(f"INSERT INTO {name} VALUES (2, 2)" for name in every),
        *TROUBLE,
        "DROP TABLE pgoutput_messages",
    )
    before = {name: tables.lake_rows(name) for name in ("value", "value_log", "key")}
    killed_at("stage.after_manifest", tables)
    killed_at("apply.before_checkpoint", tables)
    manifest = tables.run()
    assert {e.table_name for e in manifest.passed_over} == {f"public.{name}" for name in BAD}
    confirmed = pipeline.confirmed_flush_lsn()
    assert confirmed == manifest.end_lsn
    found = aside(pipeline)
    # Nothing is left to bring back of a table that the lake never had.
    assert set(found) == {*BAD, "first"}
    assert all(each.needs_copy for each in found.values())
    assert str(found["value"].refusal).startswith("ValueRefused: ")
    assert str(found["value"].since_lsn) == manifest.passed_over[0].since_lsn
    tables.assert_equal(*GOOD)
    # Each has what committed before its trouble; what is refused at once has nothing of the batch.
    for name in ("value", "value_log"):
        assert len(tables.lake_rows(name)) == 2
    assert tables.lake_rows("key") == before["key"]

    # They stay aside, and the slot goes on.
    manifest = tables.run(*(f"INSERT INTO {name} VALUES (10, 10)" for name in (*every, "first")))
    assert {each.name for each in manifest.tables} == {f"public.{name}" for name in GOOD}
    tables.assert_equal(*GOOD)
    assert aside(pipeline) == found
    # Batches have nothing of them, so a replay changes nothing.
    state = tables.state()
    replay(pipeline.spark, _catch_up(pipeline, tables, tuple(f"public.{name}" for name in BAD)))
    assert tables.state()[0] == state[0]
    assert aside(pipeline) == found
    tables.assert_repeatable()
    checkpoint = pipeline.checkpoint()
    assert checkpoint is not None
    again = rebuilt(pipeline)
    assert again.passed_over == checkpoint.passed_over
    unstaged = {oid: each for oid, each in again.set_aside.items() if each.needs_copy}
    assert unstaged == checkpoint.set_aside
    tables.run()
    assert aside(pipeline) == found

    # The cause goes, and copies bring all back. The change log begins anew elsewhere.
    tables.set_targets({"public.value_log": "value_log_2"})
    manifest = tables.run(
        *(f"DELETE FROM {name} WHERE d = 'NaN'" for name in ("value", "value_log", "first")),
        "ALTER TABLE key REPLICA IDENTITY DEFAULT",
        copy_tables=tuple(f"public.{name}" for name in (*BAD, "first")),
    )
    assert aside(pipeline) == {}
    tables.assert_equal("value", "key", "again", "first", *GOOD)
    rows = tables.source_rows("value_log")
    tables.assert_holds("value_log", rows, target="value_log_2")
    tables.run(*(f"UPDATE {name} SET d = d + 1" for name in (*every, "first")))
    tables.assert_equal("value", "key", "again", "first", *GOOD)
    tables.assert_holds("value_log", tables.source_rows("value_log"), target="value_log_2")


def test_the_rehearsal_of_the_page(pipeline: Pipeline) -> None:
    """A column's type changes on Friday night. On Monday one command brings the table back."""
    section = PAGE.read_text().split("### A rehearsal", 1)[1].split("\n## ", 1)[0]
    friday = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)[0].split(";\n")
    monday = json.loads(re.findall(r"--conf '(.*?)'", section)[0])
    # What a DAG gets that leaves the argument as it is.
    for operator, options in (
        (PgoutputStageOperator, pipeline.capture_options),
        (PgoutputApplyOperator, pipeline.plan_options),
    ):
        default = inspect.signature(operator).parameters["on_table_refused"].default
        options["on_table_refused"] = default
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE orders (id int PRIMARY KEY, amount int)",
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "INSERT INTO orders VALUES (1, 10), (2, 20)",
        "INSERT INTO customers VALUES (1, 'Grace'), (2, 'Alan')",
        "CREATE PUBLICATION p FOR TABLE orders, customers",
    )
    before = tables.lake_rows("orders")
    weekend = ("UPDATE orders SET amount = '0 EUR'", "UPDATE customers SET name = upper(name)")
    for statements in (filter(None, friday), weekend):
        tables.run(*statements)
        assert list(aside(pipeline)) == ["orders"]
        tables.assert_equal("customers")
        assert tables.lake_rows("orders", columns=("id", "amount")) == before
    tables.run(copy_tables=tuple(monday["copy_tables"]))
    assert aside(pipeline) == {}
    tables.assert_equal("orders", "customers")
    tables.run("INSERT INTO orders VALUES (4, '40 EUR')")
    tables.assert_equal("orders")


def _catch_up(pipeline: Pipeline, tables: Tables, names: tuple[str, ...]) -> ReplayJob:
    fields: dict[str, Any] = {
        "staging_uri": pipeline.staging.as_uri(),
        "catalog_name": CATALOG,
        "namespace": pipeline.namespace,
        "manifest_uris": tuple(each.uri for each in tables.batches),
        "tables": names,
        "in_place": True,
        "catch_up": True,
    }
    options = {k: v for k, v in pipeline.plan_options.items() if k != "on_table_refused"}
    return ReplayJob(**{**fields, **options})
