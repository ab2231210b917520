"""What the apply operator gives spark-submit: plan, packages, options, secrets. A double stands in for it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.jobs import ApplyJob, job_from_json
from airflow_provider_pgoutput.batch.spark_packages import SQLITE, runtime
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import spark_home

if TYPE_CHECKING:
    from tests.airflow.spark_submit_double import Workshop

CANARY = "canary-0xC0FFEE"


def test_the_job_gets_a_plan_the_package_and_the_catalog(
    workshop: Workshop, task_context: Any
) -> None:
    operator = workshop.operator(
        mode="change_log",
        table_options='{"public.orders": {"partitioned_by": ["days(made_at)"]}}',
        metadata_columns=["_pgoutput_op"],
        plan_options='{"parallel_tables": "2", "drop_columns": "False"}',
        conf={"spark.mine": "1"},
        py_files="/mine.zip",
    )
    operator.execute(task_context)
    seen = workshop.seen()
    plan = job_from_json(seen["job"])
    assert isinstance(plan, ApplyJob)
    assert (plan.manifest_uri, plan.staging_uri) == (
        workshop.batch["manifest_uri"],
        workshop.staging_uri,
    )
    assert (plan.catalog_name, plan.namespace, plan.mode) == (
        "iceberg_default",
        "shop",
        "change_log",
    )
    assert plan.table_options["public.orders"].partitioned_by == ("days(made_at)",)
    assert (plan.metadata_columns, plan.parallel_tables) == (("_pgoutput_op",), 2)
    assert plan.drop_columns is False
    assert (plan.dag_id, plan.run_id) == ("tests", "manual__1")
    conf = [
        seen["arguments"][at + 1] for at, each in enumerate(seen["arguments"]) if each == "--conf"
    ]
    assert "spark.mine=1" in conf
    assert "spark.sql.catalog.iceberg_default.type=jdbc" in conf
    package_zip, mine = seen["arguments"][seen["arguments"].index("--py-files") + 1].split(",")
    assert package_zip.endswith("airflow_provider_pgoutput.zip")
    assert mine == "/mine.zip"
    assert not Path(package_zip).exists(), "the files of the job are left behind"


def test_auto_stands_for_the_packages_that_the_job_needs(
    workshop: Workshop, task_context: Any
) -> None:
    here = spark_home()
    operator = workshop.operator(
        packages="auto, com.example:own:1.0", env_vars={"SPARK_HOME": str(here)}
    )
    operator.execute(task_context)
    arguments = workshop.seen()["arguments"]
    assert arguments[arguments.index("--packages") + 1].split(",") == [
        "com.example:own:1.0",
        *runtime(versions_of(here)).coordinates,
        *SQLITE.coordinates,
    ]
    assert "--exclude-packages" not in arguments
    assert operator.packages == "auto, com.example:own:1.0"


def test_auto_needs_a_spark_that_it_knows(
    workshop: Workshop, task_context: Any, tmp_path: Path
) -> None:
    operator = workshop.operator(packages="auto", env_vars={"SPARK_HOME": str(tmp_path)})
    with pytest.raises(AirflowFailException, match="SPARK_HOME"):
        operator.execute(task_context)
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-9.0.1.jar", "hadoop-client-api-3.4.2.jar"):
        (tmp_path / "jars" / name).touch()
    with pytest.raises(AirflowFailException, match=r"Spark 9\.0\.1 with Scala 2\.13"):
        operator.execute(task_context)
    assert not workshop.was_started


def test_every_option_reaches_the_job(workshop: Workshop, task_context: Any) -> None:
    """Each as a template gives it, and with another value than its default."""
    options = {
        "format_version": "3",
        "write_mode": "copy-on-write",
        "tag_retention_days": "30",
        "parallel_tables": "2",
        "keep_retyped_columns": "true",
        "drop_columns": "true",
    }
    workshop.operator(
        mode="change_log",
        table_options='{"public.orders": {"target": "o"}}',
        target_names='{"shop_(.*)\\\\.orders": "orders_{1}"}',
        metadata_columns='["_pgoutput_op"]',
        soft_delete="true",
        current_views="true",
        plan_options=json.dumps(options),
        on_table_refused="set_aside",
        on_row_refused="quarantine",
    ).execute(task_context)
    job = job_from_json(workshop.seen()["job"])
    assert isinstance(job, ApplyJob)
    plain = ApplyJob(manifest_uri="", staging_uri="", catalog_name="", namespace="")
    same = {
        each.name
        for each in dataclasses.fields(plain)
        if getattr(job, each.name) == getattr(plain, each.name)
    }
    # These say which batches a table lacks. The lake says it, and no option does.
    assert same == {"retried_tables", "lacked_uris"}
    assert job.soft_delete is True
    assert job.target_name("shop_eu", "orders") == "orders_eu"


@pytest.mark.parametrize(
    ("counts", "is_short"),
    [
        (Counts(inserts=60_000, deletes=40_000), True),
        (Counts(inserts=60_000, deletes=40_001), False),
        (Counts(copied=100_001), False),
    ],
)
def test_java_is_told_of_a_job_with_few_rows(
    workshop: Workshop, task_context: Any, counts: Counts, is_short: bool
) -> None:
    (table,) = workshop.manifest.tables
    workshop.seal(tables=(dataclasses.replace(table, counts=counts),))
    workshop.operator().execute(task_context)
    options = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"
    assert (options in workshop.seen()["properties"]) is is_short


def test_secrets_are_in_a_private_file_and_nowhere_else(
    workshop: Workshop, task_context: Any, set_connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {name: value for name, value in workshop.lake.properties.items() if name != "uri"}
    set_connection(
        "iceberg_default",
        {
            "conn_type": "iceberg",
            "host": workshop.lake.properties["uri"],
            "extra": {**extra, "s3.secret-access-key": CANARY, "header.Authorization": CANARY},
        },
    )
    operator = workshop.operator()
    result = operator.execute(task_context)
    seen = workshop.seen()
    assert stat.S_IMODE(seen["mode"]) == 0o600
    assert seen["properties"].count(CANARY) == 2
    everything_else = json.dumps([seen["arguments"], seen["job"], result, caplog.text])
    assert CANARY not in everything_else
    rendered = {field: getattr(operator, field) for field in operator.template_fields}
    assert CANARY not in repr(rendered)


def test_the_spark_connection_may_be_a_template(workshop: Workshop, task_context: Any) -> None:
    operator = workshop.operator(conn_id="{{ params.cluster }}")
    operator.render_template_fields({"params": {"cluster": "spark_default"}})
    operator.execute(task_context)
    assert "local[2]" in workshop.seen()["arguments"]


@pytest.mark.parametrize(
    ("host", "given", "warned"),
    [
        ("k8s://https://127.0.0.1:1", {"deploy_mode": "cluster"}, True),
        ("k8s://https://127.0.0.1:1", {"deploy_mode": "client"}, False),
        ("k8s://https://127.0.0.1:1", {"conf": {"spark.submit.deployMode": "cluster"}}, True),
        ("local[2]", {}, False),
    ],
)
def test_secrets_in_a_config_map_are_warned_of(
    workshop: Workshop,
    task_context: Any,
    set_connection: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    host: str,
    given: dict[str, Any],
    warned: bool,
) -> None:
    set_connection("spark_default", {"conn_type": "spark", "host": host})
    extra = {name: value for name, value in workshop.lake.properties.items() if name != "uri"}
    uri, extra = workshop.lake.properties["uri"], {**extra, "s3.secret-access-key": CANARY}
    set_connection("iceberg_default", {"conn_type": "iceberg", "host": uri, "extra": extra})
    # Where Airflow lacks its provider of Kubernetes, the job is not started.
    with caplog.at_level(logging.WARNING), contextlib.suppress(RuntimeError, NameError):
        workshop.operator(**given).execute(task_context)
    # A task's logger writes to one of the two. Which one depends on what ran before in this process.
    said = caplog.text + capsys.readouterr().out
    assert ("ConfigMap of the driver" in said) is warned
    assert CANARY not in said
