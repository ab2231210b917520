"""The example DAG as Airflow parses it: without errors, without heavy imports, with every parameter."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from airflow_provider_pgoutput.operators.maintain import PgoutputMaintenanceOperator
from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.tasks import arguments

ROOT = Path(__file__).parents[2]
DAG_FOLDER = ROOT / "dags_examples"
DOORS = ("hooks", "operators", "sensors", "triggers", "task_groups", "links")


@pytest.fixture(scope="module")
def dags(airflow_home: Path) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(DAG_FOLDER))
    assert bag.import_errors == {}
    return bag.dags


@pytest.fixture(scope="module")
def dag(dags: Any) -> Any:
    return dags["pgoutput_to_iceberg"]


def test_it_is_one_pipeline_in_order(dag: Any) -> None:
    order = [task.task_id.rpartition(".")[2] for task in dag.topological_sort()]
    assert order == ["stage", "apply", "advance"]
    stage, apply, advance = dag.topological_sort()
    assert isinstance(stage, PgoutputStageOperator)
    assert isinstance(apply, PgoutputApplyOperator)
    assert isinstance(advance, PgoutputAdvanceSlotOperator)
    assert advance.upstream_task_ids == {stage.task_id, apply.task_id}


def test_only_one_run_at_a_time_and_none_for_the_past(dag: Any) -> None:
    assert dag.max_active_runs == 1
    assert dag.catchup is False


@pytest.mark.parametrize(
    "name",
    [
        "pgoutput_to_iceberg",
        "pgoutput_replay",
        "pgoutput_maintenance",
        "pgoutput_verify",
        "pgoutput_repair",
    ],
)
def test_every_parameter_is_described_and_used(dags: Any, name: str) -> None:
    params = dags[name].params
    text = (DAG_FOLDER / f"{name}.py").read_text()
    assert {"slot_name", "staging_uri", "namespace"} <= set(params)
    for each in params:
        assert params.get_param(each).description, each
        assert f"params.{each} " in text, each


@pytest.mark.parametrize("path", sorted(DAG_FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_form_shows_the_main_parameters_first(dags: Any, path: Path) -> None:
    params = dags[path.stem].params
    sections = [params.get_param(each).schema.get("section") for each in params]
    assert sections.count(None) <= 8
    assert set(sections) <= {None, "Connections", "This run", "Advanced"}
    # Markdown has no such mark before a block of code.
    assert "::\n" not in dags[path.stem].doc_md


def test_the_replay_gets_what_was_given(dags: Any) -> None:
    dag = dags["pgoutput_replay"]
    (task,) = (each.prepare_for_execution() for each in dag.topological_sort())
    given = {"staging_uri": "s3://lake/staging", "from_lsn": "16/B374D848"}
    defaults = {each: dag.params.get_param(each).value for each in dag.params if each not in given}
    params = {**defaults, **given, "tables": ["it's.a"], "target_namespace": "again"}
    task.render_template_fields({"params": params, "dag": dag, "task": task})
    assert (task.from_lsn, task.target_namespace) == ("16/B374D848", "again")
    assert arguments.lsn(task.to_lsn, "to_lsn") is None
    assert arguments.optional_text_list(task.tables, "tables") == ("it's.a",)
    assert arguments.mapping(task.table_options, "table_options") == {}


def test_a_repair_waits_for_an_approval(dags: Any) -> None:
    dag = dags["pgoutput_repair"]
    order = ["verify", "differing", "approve", "repair"]
    names = [task.task_id.removeprefix("verify_lake.") for task in dag.topological_sort()]
    assert names == order
    verify, differing, approve, repair = (
        task.prepare_for_execution() for task in dag.topological_sort()
    )
    found = [
        {"table_name": "public.a", "is_equal": True},
        {
            "table_name": "public.it's",
            "is_equal": False,
            "missing": 1,
            "surplus": 2,
            "different": 3,
        },
        {"table_name": "public.c", "is_equal": None},
    ]
    different = differing.python_callable({"tables": found})
    assert different == ["public.it's"]
    assert not differing.python_callable({"tables": found[:1]})

    class Pulls:
        def xcom_pull(self, task_ids: str, **_: Any) -> Any:
            given = {"verify": {"tables": found}, "differing": different}
            return given[task_ids.removeprefix("verify_lake.")]

    defaults = {
        each: dag.params.get_param(each).value for each in dag.params if each != "staging_uri"
    }
    params = {**defaults, "staging_uri": "s3://lake/staging"}
    for task in (verify, approve, repair):
        context = {"params": params, "dag": dag, "task": task, "ti": Pulls()}
        task.render_template_fields(context)
    assert (verify.on_difference, repair.on_difference) == ("succeed", "repair")
    assert arguments.optional_text_list(verify.tables, "tables") == ()
    assert arguments.optional_text_list(repair.tables, "tables") == ("public.it's",)
    assert approve.subject == "Repair tables of pgoutput?"
    assert "`public.it's`: 1 missing, 2 surplus" in approve.body
    assert "public.a" not in approve.body


def test_a_repair_refuses_to_guess_what_was_approved(dags: Any, task_context: Any) -> None:
    """Here because the XCom of the task before was cleared: without a list all tables would be meant."""
    from airflow.sdk.exceptions import AirflowFailException

    dag = dags["pgoutput_repair"]
    repair = dag.get_task("verify_lake.repair").prepare_for_execution()

    class HasNothing:
        def xcom_pull(self, **_: Any) -> None:
            return None

    params = {each: dag.params.get_param(each).value for each in dag.params}
    context = {"params": params, "dag": dag, "task": repair, "ti": HasNothing()}
    repair.render_template_fields(context)
    assert repair.tables is None
    with pytest.raises(AirflowFailException, match="no list of the tables that were approved"):
        repair.execute(task_context)
    assert repair.task_type == "_RepairApproved"
    assert repair.operator_name == "PgoutputVerifyOperator"


@pytest.mark.parametrize(("repair", "answer"), [("never", "fail"), ("always", "repair")])
def test_a_verification_without_approval_is_one_task(repair: str, answer: str) -> None:
    from airflow.sdk import DAG

    from airflow_provider_pgoutput.task_groups.verification import verify_lake

    given: dict[str, Any] = {"slot_name": "s", "publication_names": "p"}
    given |= {"staging_uri": "u", "namespace": "n"}
    with DAG("verify", schedule=None) as dag:
        verify_lake(**given, repair=repair, verify_options={"keys_shown": 3})
    (task,) = dag.topological_sort()
    assert (task.task_id, task.on_difference, task.keys_shown) == ("verify_lake.verify", answer, 3)
    with (
        DAG("wrong", schedule=None),
        pytest.raises(ConfigurationError, match="Unknown repair 'perhaps'"),
    ):
        verify_lake(**given, repair="perhaps")


def test_parameters_reach_the_tasks_as_they_were_given(dag: Any) -> None:
    params = {
        **{name: dag.params.get_param(name).value for name in dag.params if name != "staging_uri"},
        "slot_name": "shop",
        "publication_names": ["it's", 'a "name"', "<&>"],
        "staging_uri": "s3://bucket/staging",
        "max_changes": 10,
        "decode_parallelism": 2,
        "start_lsn": "16/B374D848",
        "table_options": {"public.orders": {"partitioned_by": ["days(made_at)"]}},
    }
    stage, apply, _ = (task.prepare_for_execution() for task in dag.topological_sort())
    apply.batch = None  # Comes by XCom from a running task.
    for task in (stage, apply):
        task.render_template_fields({"params": params, "dag": dag, "task": task})
    assert arguments.text_list(stage.publication_names, "p") == ("it's", 'a "name"', "<&>")
    assert arguments.whole_number(stage.max_changes, "max_changes") == 10
    assert arguments.whole_number(stage.max_seconds, "max_seconds") is None
    assert arguments.whole_number(stage.decode_parallelism, "decode_parallelism") == 2
    assert arguments.lsn(stage.start_lsn, "start_lsn") == 0x16_B374D848
    assert arguments.optional_text(stage.catalog_name) is None
    assert arguments.mapping(apply.table_options, "table_options") == params["table_options"]
    assert arguments.mapping(apply.conf, "conf") == {}
    assert apply.name == "airflow-pgoutput_to_iceberg-pgoutput_to_iceberg.apply"


@pytest.mark.parametrize(
    "operator",
    [
        PgoutputStageOperator,
        PgoutputApplyOperator,
        PgoutputAdvanceSlotOperator,
        PgoutputReplayOperator,
        PgoutputMaintenanceOperator,
    ],
)
def test_template_fields_are_attributes_and_documented(operator: Any) -> None:
    given = {
        "slot_name": "s",
        "namespace": "n",
        "staging_uri": "u",
        "publication_names": ["p"],
        "batch": {},
        "from_lsn": "0/1",
    }
    ours = [each for each in operator.__mro__ if each.__module__.startswith("airflow_provider")]
    known = {name for each in ours for name in inspect.signature(each.__init__).parameters}
    task = operator(task_id="t", **{name: value for name, value in given.items() if name in known})
    documented = "".join(each.__doc__ for each in ours)
    inherited = set(ours[-1].__mro__[1].template_fields)
    for field in operator.template_fields:
        assert hasattr(task, field)
        assert field in inherited or f":param {field}:" in documented


def test_the_sensor_waits_in_front_when_asked_to() -> None:
    from airflow.sdk import DAG

    from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

    with DAG(dag_id="with_sensor", schedule=None) as dag:
        pgoutput_to_iceberg(
            slot_name="s",
            publication_names=["p"],
            staging_uri="file:///s",
            namespace="n",
            group_id="orders",
            wait_for_changes=True,
            sensor_options={"min_lag_bytes": 5, "deferrable": True},
            stage_options={"pool": "slot_s"},
        )
    assert dag.get_task("orders.changes").downstream_task_ids == {"orders.stage"}
    sensor: Any = dag.get_task("orders.changes")
    assert sensor.min_lag_bytes == 5
    assert dag.get_task("orders.stage").pool == "slot_s"


@pytest.mark.slow
def test_parsing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, airflow.sdk; sys.path.insert(0, 'dags_examples'); import pgoutput_to_iceberg;"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'psycopg', 'pyiceberg', 'adbc_driver_postgresql'};"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert found.stdout.split() == []


@pytest.mark.slow
def test_doors_and_example_follow_airflows_own_lint_rules() -> None:
    paths = [DAG_FOLDER, *(ROOT / "airflow_provider_pgoutput" / room for room in DOORS)]
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "AIR", *map(str, paths)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
