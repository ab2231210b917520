"""The page in a real browser, in a real Airflow, with what a hundred runs of a pipeline told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.limited_rights import READABLE
from tests.browser.programs import chromium_and_python
from tests.browser.seed import MARKUP
from tests.matrix.cells import CELLS
from tests.matrix.environments import Environments
from tests.scheduled_airflow import ScheduledAirflow

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

_LOOK = Path(__file__).with_name("look.py")
_SEED = Path(__file__).with_name("seed.py")
_DAGS = """
from datetime import timedelta

from airflow.sdk import DAG, BaseSensorOperator, get_current_context, task, task_group

from airflow_provider_pgoutput.capture.source.progress_log import CopyProgress
from airflow_provider_pgoutput.errors import ConfigurationError, SourceUnavailable
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome

for name in ("shop_dag", "danger_dag", "aside_dag", "late_dag", "old_dag", "copy_dag", "verify_dag"):
    with DAG(name, schedule=None) as dag:

        @task
        def apply():
            pass

        apply()
    globals()[name] = dag

with DAG("logging_dag", schedule=None, is_paused_upon_creation=False):

    @task
    def stage():
        progress = CopyProgress({"public.t": 1 << 20})
        for share in (0.25, 0.5):
            progress.part("public.t", share)
            progress.done()

    stage()

for name in ("failed_dag", "first_failed_dag"):
    with DAG(name, schedule=None, is_paused_upon_creation=False) as dag:

        @task
        def stage():
            with airflow_outcome(get_current_context()):
                raise ConfigurationError("The slot shop is gone.", advice="look for it.")

        stage()
    globals()[name] = dag

with DAG("never_applied_dag", schedule=None, is_paused_upon_creation=False):
    PgoutputStageOperator(
        task_id="stage",
        slot_name="nobody",
        publication_names="nobody",
        staging_uri="file:///nowhere",
        namespace="nobody",
        postgres_conn_id="nobody",
    )

with DAG("plainly_failed_dag", schedule=None, is_paused_upon_creation=False):

    @task
    def stage():
        raise RuntimeError("The disk is full.")

    stage()

with DAG("retry_dag", schedule=None, is_paused_upon_creation=False):

    @task(retries=1, retry_delay=timedelta(hours=1))
    def stage():
        with airflow_outcome(get_current_context()):
            raise SourceUnavailable("The source does not answer.", advice="see its log.")

    stage()

with DAG("two_dag", schedule=None, is_paused_upon_creation=False):

    @task
    def stage(is_well):
        with airflow_outcome(get_current_context()):
            if not is_well:
                raise ConfigurationError("The slot left is gone.")

    @task
    def apply(staged):
        pass

    @task_group
    def left():
        apply(stage(False))

    @task_group
    def right():
        apply(stage(True))

    left()
    right()

with DAG("mapped_dag", schedule=None, is_paused_upon_creation=False):

    @task_group
    def pipeline(is_well):
        apply(stage(is_well))

    # More tasks than Airflow tells of at once.
    pipeline.expand(is_well=[number != 58 for number in range(60)])


class PgoutputChangesSensor(BaseSensorOperator):
    def poke(self, context):
        return False


with DAG("waiting_dag", schedule=None, is_paused_upon_creation=False):
    PgoutputChangesSensor(task_id="wait", mode="reschedule", poke_interval=3600)
"""
#: The DAGs that Airflow runs itself.
_RUN = (
    "failed_dag",
    "first_failed_dag",
    "logging_dag",
    "two_dag",
    "mapped_dag",
    "plainly_failed_dag",
)
_WAITING = "SELECT count(*) FROM task_instance WHERE state IN ('up_for_retry', 'up_for_reschedule')"
_ENDED = "SELECT count(*) FROM dag_run WHERE state IN ('failed', 'success')"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What people see on the pages of an Airflow of its own."""
    chromium, python = chromium_and_python()
    airflow = _airflow(tmp_path_factory.mktemp("airflow"))
    airflow.prepare(_DAGS)
    for name in ("copy_dag", "late_dag", "verify_dag", "retry_dag", "waiting_dag", *_RUN):
        airflow.run("-m", "airflow", "dags", "trigger", "--run-id", "first", name)
    with airflow.api_server():
        with airflow.scheduler():
            # Airflow runs them as in production, so that their logs are its own.
            airflow.wait_for(_ENDED, len(_RUN))
            airflow.wait_for(_WAITING, 2)
        command = [python, str(_LOOK), airflow.url, chromium, "a password", str(airflow.home)]
        before = _look([*command, "empty"])
        # Only now, because it is on the page at once.
        airflow.run("-m", "airflow", "dags", "trigger", "--run-id", "first", "never_applied_dag")
        with airflow.scheduler():
            airflow.wait_for(_ENDED, len(_RUN) + 1)
        airflow.run(str(_SEED))
        yield {"before": before, **_look([*command, "filled"])}


def _look(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _airflow(home: Path) -> ScheduledAirflow:
    """The Airflow to look at. ``CELL`` names one of the matrix."""
    python, variables = sys.executable, {}
    if name := os.environ.get("CELL"):
        (cell,) = (each for each in CELLS if each.name == name)
        environments = Environments.make(cell, with_spark=False)
        python = str(environments.python)
        # Else the package would be that of the current folder, and not the wheel.
        variables = {"PYTHONSAFEPATH": "1"}
    users = ("ann", *READABLE)
    (home / "passwords.json").write_text(json.dumps(dict.fromkeys(users, "a password")))
    more = {
        **variables,
        "PYTHONPATH": str(Path(__file__).parent),
        "AIRFLOW__CORE__AUTH_MANAGER": "limited_rights.LimitedAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:viewer" for user in users),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
    }
    return ScheduledAirflow(home, python, more)


def block_of(seen: dict[str, Any], slot: str) -> str:
    """What stands about a pipeline, among all pipelines."""
    (found,) = (
        block
        for block in seen["all"].split("db.example.com:5432/app/")
        if block.partition("\t")[0] == slot
    )
    return str(found.partition("\t")[2]).strip()


def test_who_did_not_log_in_sees_nothing(seen: dict[str, Any]) -> None:
    assert seen["anonymous"].startswith("Airflow refused /api/v2/assets.")


def test_before_the_first_run_it_says_what_to_do_first(seen: dict[str, Any]) -> None:
    text = seen["before"]["clicked_navigation"]
    assert "There is no pipeline yet, or none that you may see." in text
    assert "To make one, put a DAG with pgoutput_to_iceberg into Airflow's folder of DAGs" in text
    assert seen["before"]["errors"] == []


def test_a_person_gets_there_by_the_form_and_clicks(seen: dict[str, Any]) -> None:
    assert "app/danger" in seen["clicked_navigation"]
    for name in ("clicked_pipeline", "clicked_tab"):
        assert seen[name].startswith("db.example.com:5432/app/shop"), name


def test_all_pipelines_the_worst_first(seen: dict[str, Any]) -> None:
    text = seen["all"]
    assert text.index("app/danger") < text.index("app/shop")
    assert "slot in danger" in text
    assert "99.0 MB of 1.0 GB" in text
    assert "Task stage failed. ConfigurationError: The slot shop is gone." in text
    assert re.search(r"\(LSN 0/640\), \d+ min ago\.", text)


def test_a_pipeline_whose_first_run_failed_is_there_too(seen: dict[str, Any]) -> None:
    """It has no asset, so its row leads to its DAG."""
    row = seen["all"].partition("never_applied_dag\t")[2].partition("db.example.com")[0]
    assert row.lstrip().startswith("failed\n")
    assert "Task stage failed. ConnectionNotFound: " in row
    assert "It is not known up to which time the lake is complete." in row
    assert "never_applied_dag" not in seen["all_of_bob"]


def test_one_pipeline_with_a_thousand_tables(seen: dict[str, Any]) -> None:
    assert seen["figures"] == 4
    assert seen["rows"] == 201
    assert "801 more. Search to see them." in seen["one"]
    assert seen["most_inserts"].startswith("public.t0999")
    assert seen["searched"].startswith("public.t0777")


def test_what_a_user_named_is_text_and_no_markup(seen: dict[str, Any]) -> None:
    assert MARKUP in seen["one"]
    assert seen["title"] == "PostgreSQL to Iceberg"


def test_the_pipeline_of_a_dag(seen: dict[str, Any]) -> None:
    assert seen["of_dag"].startswith("db.example.com:5432/app/danger")
    assert "the server was about to remove WAL that the slot needs." in seen["of_dag"]
    assert seen["of_no_dag"].startswith("No run of this DAG has applied a batch yet")


def test_what_was_proven(seen: dict[str, Any]) -> None:
    assert "proven 3.0 h ago" in seen["all"]
    assert "not proven" in seen["all"]
    proven = "1,000 of 1,000 tables, 123,456 rows, were proven equal at LSN 0/640, 3.0 h ago."
    assert proven in seen["one"]
    assert "Nobody has verified the lake" in seen["of_dag"]
    assert "Verifications" not in seen["of_dag"]


def test_a_verification_that_found_a_difference_and_failed(seen: dict[str, Any]) -> None:
    """It made no event. The page has what it left in XCom."""
    assert "1 of 20 tables differed: public.t0003, " in seen["late"]
    (row,) = (row for row in seen["late"].splitlines() if "\t0/700\t" in row)
    assert row.endswith("\t0/700\t1 of 20 tables differed: public.t0003\t1,900\t1.5 s")
    assert block_of(seen, "late").startswith("late\n")
    assert "\tdiffering\t" in block_of(seen, "late")


def test_rows_and_last_proof_of_each_table(seen: dict[str, Any]) -> None:
    rows = {row.split("\t")[0]: row.split("\t")[8:] for row in seen["one"].splitlines()}
    (count, proof) = rows["public.t0001"]
    assert (count, proof.partition(", ")[0]) == ("42", "equal")
    # Of a part nobody knows how many rows the table has, and no run has changed this table.
    (count, proof) = rows["public.other"]
    assert (count, proof.partition(", ")[0]) == ("", "part 3 of 100 equal")
    (count, proof) = {row.split("\t")[0]: row.split("\t")[8:] for row in seen["late"].splitlines()}[
        "public.t0003"
    ]
    assert (count, proof.partition(", ")[0]) == ("7", "different")


def test_a_task_that_is_tried_again(seen: dict[str, Any]) -> None:
    """Its run goes on, and may go on for hours."""
    assert "A task of the newest run failed, and is tried again." in seen["retrying"]
    assert "Task stage failed in try 1, and is tried again." in seen["retrying"]
    assert "SourceUnavailable: The source does not answer." in seen["retrying"]


def test_two_pipelines_in_one_dag_fail_by_themselves(seen: dict[str, Any]) -> None:
    assert block_of(seen, "right").startswith("well\t")
    said = "Task left.stage failed. ConfigurationError: The slot left is gone."
    assert said in block_of(seen, "left")


def test_it_looks_again_and_asks_for_the_newest_run_again(seen: dict[str, Any]) -> None:
    assert "/dags/danger_dag/dagRuns" in seen["asked_again"]


def test_one_of_many_pipelines_that_a_dag_makes_by_mapping_fails(seen: dict[str, Any]) -> None:
    assert block_of(seen, "mapped57").startswith("well\t")
    assert block_of(seen, "mapped58").startswith("failed\n")
    said = "The newest run failed. Task pipeline.stage failed. ConfigurationError"
    assert said in block_of(seen, "mapped58")


def test_a_pipeline_that_waits_for_changes_is_not_late(seen: dict[str, Any]) -> None:
    assert block_of(seen, "waiting").startswith("waiting\t")


def test_a_pipeline_with_one_old_run_is_late(seen: dict[str, Any]) -> None:
    assert block_of(seen, "old").startswith("late\n")
    assert "The last run that ended well did so 30 days ago." in block_of(seen, "old")
    assert "2 tables are set aside" in block_of(seen, "old"), "all that is wrong is said"


def test_a_warning_about_the_slot(seen: dict[str, Any]) -> None:
    assert "Slot danger is past max_slot_wal_keep_size." in seen["of_dag"]


def test_a_run_that_waits_is_no_reason_to_call_a_late_pipeline_well(seen: dict[str, Any]) -> None:
    assert "Usually one ends every 5 min. A run is queued." in seen["late"]


def test_a_failed_verification_is_seen_among_all_pipelines(seen: dict[str, Any]) -> None:
    of_aside = block_of(seen, "aside")
    assert of_aside.startswith("set aside\n")
    assert "2 tables are set aside: public.t0001, public.t0002.\n\n\tfailed\t" in of_aside
    order = re.findall(r"db\.example\.com:5432/app/(\w+)\t", seen["all"])
    # What failed or differs, the oldest first; then what is to be watched.
    assert order[0] == "late"
    assert set(order[1:5]) == {"failed", "left", "mapped58", "aside"}
    assert set(order[-4:]) == {"mapped57", "right", "waiting", "shop"}


def test_what_was_proven_before(seen: dict[str, Any]) -> None:
    history = seen["one"].partition("Verifications\n")[2].partition("Changes of schemas")[0]
    rows = [row.split("\t")[1:] for row in history.splitlines() if "tables" in row]
    assert rows == [
        ["0/640", "1,000 of 1,000 tables equal", "123,456", "7.5 s"],
        ["0/500", "1 of 1,000 tables differed: public.t0007; 2 not compared", "120,000", "8.5 s"],
    ]
    assert history.count("0/640") == 1


def test_tables_that_are_set_aside(seen: dict[str, Any]) -> None:
    assert "2 tables are set aside: public.t0001, public.t0002." in seen["aside"]
    assert "set aside" in seen["all"]


@pytest.mark.parametrize("name", ["failed", "first_failed"])
def test_why_the_newest_run_failed(seen: dict[str, Any], name: str) -> None:
    """Also if it was the first one, and the pipeline has no event yet."""
    assert "Task stage failed." in seen[name]
    assert "The slot shop is gone." in seen[name]
    assert "look for it." in seen[name]
    assert "Traceback" not in seen[name]


def test_an_error_that_is_not_ours_has_its_class_and_message(seen: dict[str, Any]) -> None:
    assert "RuntimeError: The disk is full." in seen["plainly_failed"]


def test_who_may_not_read_a_dag_sees_nothing_of_it(seen: dict[str, Any]) -> None:
    assert "There is no pipeline yet, or none that you may see." in seen["all_of_bob"]
    for name in ("shop_of_bob", "danger_of_bob", "danger_of_cat"):
        assert seen[name].startswith("No run of this DAG has applied a batch yet"), name
    assert seen["by_number_of_bob"] == "There is no such pipeline, or you may not see it."
    for name in ("all_of_bob", "shop_of_bob", "by_number_of_bob"):
        assert "shop" not in seen[name]


def test_who_may_read_one_dag_sees_that_one(seen: dict[str, Any]) -> None:
    """The DAG of the verification is another one, so nothing is said about what it found."""
    assert "app/shop" in seen["all_of_cat"]
    assert "app/danger" not in seen["all_of_cat"]
    for name in ("shop_of_cat", "by_number_of_cat"):
        assert seen[name].startswith("db.example.com:5432/app/shop")
        assert (
            "Nobody has verified the lake with PgoutputVerifyOperator yet, or you may" in seen[name]
        )
        assert "proven" not in seen[name]


def test_how_far_a_first_copy_is(seen: dict[str, Any]) -> None:
    assert "task apply copies: 3 of 12 tables, 1.2 GB of about 4.8 GB; " in seen["copying"]
    assert "; 6,000,000 rows, 50,000 rows/s; about 6 min left." in seen["copying"]


def test_how_far_a_task_is_that_tells_it_in_its_log_only(seen: dict[str, Any]) -> None:
    """So it is in Airflow 3.1."""
    assert "task stage wrote: 0 of 1 tables, 0.8 of about 1.0 MiB copied; 0 rows" in seen["logging"]
    assert "0.2 of about 1.0 MiB" not in seen["logging"]


def test_it_can_be_read_on_a_phone_and_in_the_dark(seen: dict[str, Any]) -> None:
    assert seen["overflow"] <= 0
    assert seen["ground"] == "rgb(13, 17, 23)"


def test_airflow_shows_it_in_its_frames(seen: dict[str, Any]) -> None:
    assert "app/danger" in seen["in_navigation"]
    assert "app/shop" in seen["in_navigation"]
    assert seen["on_dag"].startswith("db.example.com:5432/app/danger")


def test_nobody_else_is_asked_and_nothing_is_refused(seen: dict[str, Any]) -> None:
    assert len(seen["hosts"]) == 1
    assert seen["hosts"][0].startswith("127.0.0.1:")
    assert seen["errors"] == []
    print({name: value for name, value in seen.items() if name.endswith("_seconds")})
