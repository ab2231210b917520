"""What one spark-submit is given: its package, its private properties, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.spark_submit.files import (
    COPY,
    HASH,
    own_spark_submit,
    spark_defaults,
    spark_files,
)
from airflow_provider_pgoutput.spark_submit.job import SparkJob, kill_descendants
from quickstart.spark import spark_environment
from tests.spark_log import spark_lines

CANARY = "canary-0xC0FFEE"
EVERY_JOB = {
    *(
        "__init__.py",
        "errors.py",
        "crash_points.py",
        "garbage.py",
        "parent_watch.py",
        "masks.py",
        "log_rows.py",
        "slices.py",
    ),
    "batch",
}


def _printed(package_zip: str, code: str) -> str:
    """What code prints in a Python that has nothing else of ours than the archive."""
    return subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {package_zip!r}); {code}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture(autouse=True)
def _no_spark_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def test_only_what_apply_imports_is_shipped() -> None:
    with spark_files({}, None) as files, zipfile.ZipFile(files.package_zip) as archive:
        names = archive.namelist()
    rooms = {name.split("/")[1] for name in names}
    assert rooms == {*EVERY_JOB, "apply"}
    assert all(
        name.startswith("airflow_provider_pgoutput/") and name.endswith(".py") for name in names
    )


@pytest.mark.slow
def test_the_copy_is_shipped_with_capture_and_without_airflows_side() -> None:
    code = "import airflow_provider_pgoutput.spark_copy.main as main; print(main.__file__)"
    with spark_files({}, None, COPY) as files:
        with zipfile.ZipFile(files.package_zip) as archive:
            rooms = {name.split("/")[1] for name in archive.namelist()}
        assert _printed(files.package_zip, code).startswith(files.package_zip)
    shared = {*EVERY_JOB, "scratch.py", "filters.py", "spark_driver.py", "lake", "capture"}
    assert rooms == {*shared, "spark_copy"}


@pytest.mark.slow
def test_the_proof_is_shipped_without_airflows_side() -> None:
    code = (
        "import airflow_provider_pgoutput.spark_proof.main as main, sys;"
        "assert 'airflow' not in sys.modules; print(main.__file__)"
    )
    with spark_files({}, None, HASH) as files:
        assert _printed(files.package_zip, code).startswith(files.package_zip)


def test_the_shipped_package_is_whole() -> None:
    """What is in the zip can be imported from it, in a Python that has nothing else of ours."""
    code = (
        "import airflow_provider_pgoutput.batch.jobs, airflow_provider_pgoutput.batch.manifest;"
        "print(airflow_provider_pgoutput.__file__)"
    )
    with spark_files({}, None) as files:
        assert _printed(files.package_zip, code).startswith(files.package_zip)


def test_nobody_else_can_read_the_secrets_and_nothing_is_left() -> None:
    with spark_files({"spark.sql.catalog.lake.token": CANARY}, None) as files:
        properties = Path(files.properties_file)
        assert stat.S_IMODE(properties.stat().st_mode) == 0o600
        assert stat.S_IMODE(properties.parent.stat().st_mode) == 0o700
        assert CANARY in properties.read_text()
        others = [Path(files.application), Path(files.package_zip)]
        assert all(CANARY.encode() not in path.read_bytes() for path in others)
    assert not properties.parent.exists()


def test_nothing_is_left_after_a_failure() -> None:
    def fail() -> None:
        with spark_files({"a": CANARY}, None) as files:
            folders.append(Path(files.properties_file).parent)
            raise RuntimeError

    folders: list[Path] = []
    with pytest.raises(RuntimeError):
        fail()
    assert not folders[0].exists()


def test_what_a_killed_task_left_goes_with_the_next_one_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal\n"
        "from airflow_provider_pgoutput.spark_submit.files import COPY, spark_files\n"
        "with spark_files({'a': 'b'}, None, COPY):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert (left / "spark.properties").exists()
    with spark_files({}, None) as files:
        assert list(tmp_path.iterdir()) == [files.folder]


def test_the_application_stands_alone_in_its_folder() -> None:
    """Python searches the folder of a script first: a ``types.py`` beside it would hide Python's."""
    with spark_files({}, None) as files:
        scripts = list(Path(files.application).parent.glob("*.py"))
        assert scripts == [Path(files.application)]


def test_the_users_properties_come_first(tmp_path: Path) -> None:
    given = tmp_path / "mine.properties"
    given.write_text("spark.mine 1\nspark.redaction.regex mine")
    with spark_files({"spark.a": "b"}, str(given)) as files:
        lines = Path(files.properties_file).read_text().splitlines()
    assert lines[:2] == ["spark.mine 1", "spark.redaction.regex mine"]
    assert lines[3:] == ["spark.a=b"]


@pytest.mark.parametrize("own", [None, "mine", "(my|own)$"])
def test_spark_hides_what_it_was_given_in_secret(tmp_path: Path, own: str | None) -> None:
    """By its key too, whatever that is, and whatever expression the user has."""
    given = tmp_path / "mine.properties"
    given.write_text(f"spark.redaction.regex  {own}\n" if own else "")
    secrets = {"spark.sql.catalog.lake.header.X-Mine": "a", "spark.sql.catalog.lake.uri": "b"}
    with spark_files(secrets, str(given)) as files:
        lines = Path(files.properties_file).read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("spark.redaction.regex="))
    # As Java reads the file, and without the flag, which Python wants at the beginning.
    text = re.sub(r"\\(.)", r"\1", line.partition("=")[2]).replace("(?i)", "")
    expression = re.compile(text, re.IGNORECASE)
    for key in secrets:
        assert expression.search(key)
    for hidden in ("s3.secret-access-key", "adls.connection-string", "http://me:word@db/x"):
        assert expression.search(hidden)
    for shown in ("spark.sql.catalog.lake.warehouse", "http://db:8181/x", "spark.app.name"):
        assert not expression.search(shown)
    assert not own or expression.search("own" if "own" in own else "mine")


def spark_home(folder: Path) -> Path:
    """A Spark with a spark-submit, and defaults that have its folder's name."""
    for part in ("bin", "conf"):
        (folder / part).mkdir(parents=True)
    binary = folder / "bin" / "spark-submit"
    binary.touch(0o755)
    (folder / "conf" / "spark-defaults.conf").write_text(f"spark.of {folder.name}\n")
    return binary


def defaults_of(host: str, binary: str | None, env_vars: dict[str, str] | None = None) -> str:
    job = SparkJob.prepare(spark_connection(host), None, binary)
    with job.files({}, None, {}, env_vars) as files:
        lines = Path(files.properties_file).read_text().splitlines()
    assert lines[-1].startswith("spark.redaction.regex=")
    assert "credential" in lines[-1]
    return " ".join(
        each.removeprefix("spark.of ") for each in lines if each.startswith("spark.of ")
    )


def test_sparks_own_defaults_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which spark-submit looks for them, which reads only one properties file."""
    binary = str(spark_home(tmp_path / "binary"))
    for name in ("home", "given", "worker"):
        spark_home(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert defaults_of("local", binary) == "binary"
    monkeypatch.setenv("PATH", str(tmp_path / "binary" / "bin"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "empty"))
    assert defaults_of("local", None) == "binary"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    assert defaults_of("local", binary) == "home"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "worker" / "conf"))
    assert defaults_of("local", binary) == "worker"
    given = {"SPARK_CONF_DIR": str(tmp_path / "given" / "conf")}
    assert defaults_of("local", binary, given) == "given"
    assert defaults_of("yarn", binary, given) == "given"
    # There they are the driver's environment.
    assert defaults_of("k8s://https://host:443", binary, given) == "worker"
    assert defaults_of("local", binary, {"SPARK_CONF_DIR": str(tmp_path / "empty")}) == ""


def test_the_users_properties_are_in_the_place_of_the_defaults(tmp_path: Path) -> None:
    binary = spark_home(tmp_path / "binary")
    given = tmp_path / "mine.properties"
    given.write_text("spark.mine 1")
    job = SparkJob.prepare(spark_connection("local"), None, str(binary))
    with job.files({}, str(given), {}) as files:
        text = Path(files.properties_file).read_text()
    assert "spark.mine 1" in text.splitlines()
    assert "spark.of" not in text


def test_properties_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"missing\.properties"),
        spark_files({}, str(tmp_path / "missing.properties")),
    ):
        pytest.fail("entered")


@pytest.mark.submit
@pytest.mark.parametrize("own", ["", "spark.driver.defaultJavaOptions -Xmine"])
def test_javas_options_of_a_short_job_are_known_to_spark_and_give_way(
    tmp_path: Path, own: str
) -> None:
    """The command with which Spark's own launcher starts Java."""
    given = tmp_path / "mine.properties"
    given.write_text(f"spark.driver.extraJavaOptions -XX:TieredStopAtLevel=4\n{own}")
    environment = {**os.environ, **spark_environment(), "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    submit = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
    started = {}
    for is_short in (False, True):
        with spark_files({}, str(given), is_short=is_short) as files:
            command = [str(submit), "--properties-file", files.properties_file, "--version"]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=environment
            )
        (line,) = (each for each in done.stderr.splitlines() if each.startswith("Spark Command:"))
        started[is_short] = [each for each in line.split() if each.startswith("-X")]
    ours = [] if own else ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m"]
    # Of two options Java takes the last: the user's.
    at = started[False].index("-XX:TieredStopAtLevel=4")
    assert started[True] == [*started[False][:at], *ours, *started[False][at:]]


@pytest.mark.submit
def test_spark_reads_our_log_configuration_if_the_user_has_none(tmp_path: Path) -> None:
    """A Spark that knows no master says so in a line of its log, beside what it says of each step."""
    (tmp_path / "conf").mkdir()
    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "session = SparkSession.builder.getOrCreate()\n"
        "log = session._jvm.org.apache.logging.log4j.LogManager.getLogger\n"
        "log('org.apache.spark.A').warn('a word')\n"
        "log('org.apache.spark.scheduler.B').warn('a task was lost')\n"
        "log('org.apache.iceberg.C').error('an error')\n"
        "session.stop()\n"
    )
    environment = {**os.environ, **spark_environment()}
    environment["SPARK_CONF_DIR"] = str(tmp_path / "conf")
    submit = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    job = SparkJob.prepare(
        Connection(conn_id="s", conn_type="spark", host="local[1]"), None, submit
    )
    said = {}
    for level in (None, "INFO"):
        conf = {"spark.log.level": level} if level else {}
        variables = {"SPARK_CONF_DIR": environment["SPARK_CONF_DIR"]}
        with job.files({}, None, conf, variables) as files:
            settings = [f"--conf={key}={value}" for key, value in conf.items()]
            command = [submit, "--master", "local[1]", "--properties-file", files.properties_file]
            done = subprocess.run(
                [*command, *settings, str(script)],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
            )
        said[level] = done.stderr
    assert spark_lines(said[None].replace("B: a task was lost", "")) == []
    assert "WARN B: a task was lost" in said[None]
    assert "ERROR C: an error" in said[None]
    assert "a word" not in said[None]
    assert len(spark_lines(said["INFO"])) > 20
    assert "WARN A: a word" in said["INFO"]


OPTION = "-Dlog4j2.configurationFile=file:"


def asked(properties: str, conf: dict[str, str], mode: str | None = None, **env: str) -> bool:
    """Whether a job's properties file names our configuration of Spark's log."""
    connection = Connection(conn_id="s", conn_type="spark", host="spark://somewhere:7077")
    job = SparkJob.prepare(connection, mode, "/nowhere/bin/spark-submit")
    given = Path(tempfile.mkdtemp()) / "mine.properties"
    given.write_text(properties)
    with job.files({}, str(given), conf, env) as files:
        return OPTION in Path(files.properties_file).read_text()


@pytest.mark.slow
def test_a_user_who_says_how_spark_logs_gets_that(tmp_path: Path) -> None:
    assert asked("", {})
    assert asked("spark.driver.extraJavaOptions -Xss4m", {"spark.driver.extraJavaOptions": "-Xa"})
    option = "-Dlog4j2.configurationFile=mine.xml"
    assert not asked("", {"spark.log.level": "INFO"})
    assert not asked("spark.log.level=WARN", {})
    assert not asked("", {"spark.driver.extraJavaOptions": option})
    assert not asked(f"spark.driver.defaultJavaOptions {option}", {})
    assert not asked("", {}, SPARK_SUBMIT_OPTS=option)
    assert not asked("", {}, LOG4J_CONFIGURATION_FILE="mine.xml")
    # There, spark-submit tells by its log what became of the driver.
    assert not asked("", {}, mode="cluster")
    assert asked("", {}, SPARK_CONF_DIR=str(tmp_path))
    # Spark comes with this one, and reads it not.
    (tmp_path / "log4j2.properties.template").touch()
    assert asked("", {}, SPARK_CONF_DIR=str(tmp_path))
    (tmp_path / "log4j2.xml").touch()
    assert not asked("", {}, SPARK_CONF_DIR=str(tmp_path))


_HARD = {
    "plain": "value",
    "spaces": "  a b  ",
    "signs": "a=b:c#d!e\\f",
    "lines": "a\nb\tc\rd",
    "key with = and :": "x",
    "unicode": "pässwörd-\U0001f418",
    "empty": "",
}


def test_java_reads_back_every_character(spark: Any) -> None:
    """Java's own reader of properties is the oracle."""
    with spark_files(_HARD, None) as files:
        jvm = spark.sparkContext._jvm
        reader = jvm.java.io.InputStreamReader(
            jvm.java.io.FileInputStream(files.properties_file), "UTF-8"
        )
        properties = jvm.java.util.Properties()
        properties.load(reader)
        reader.close()
        assert {key: properties.getProperty(key) for key in _HARD} == _HARD


def test_the_defaults_of_a_spark_that_pip_installed_are_in_its_package(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark"
    for folder in (tmp_path / "bin", package / "conf"):
        folder.mkdir(parents=True)
    binary = tmp_path / "bin" / "spark-submit"
    binary.touch(0o755)
    (package / "conf" / "spark-defaults.conf").write_text("spark.mine 1\n")
    assert spark_defaults(str(binary), {}) is None
    (binary.parent / "find_spark_home.py").touch()
    assert spark_defaults(str(binary), {}) == str(package / "conf" / "spark-defaults.conf")


@pytest.fixture
def own_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of Airflow's that has a spark-submit."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return binary


def spark_connection(host: str, **extra: str) -> Connection:
    import json

    return Connection(
        conn_id="spark_default", conn_type="spark", host=host, extra=json.dumps(extra)
    )


def test_the_spark_of_airflows_own_environment_is_the_default(own_spark: Path) -> None:
    job = SparkJob.prepare(spark_connection("local[2]"), None, None)
    assert job.spark_binary == str(own_spark)
    assert job.environment({}, None) == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize("argument", ["/opt/spark/bin/spark-submit", None])
def test_a_spark_that_the_user_named_is_left_alone(own_spark: Path, argument: str | None) -> None:
    extra = {} if argument else {"spark-binary": "spark3-submit"}
    job = SparkJob.prepare(spark_connection("local", **extra), None, argument)
    assert job.spark_binary == argument
    assert job.environment({}, None) is None


def test_spark_home_wins(own_spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert own_spark_submit() is None


def test_a_python_that_the_user_named_is_left_alone(own_spark: Path) -> None:
    job = SparkJob.prepare(spark_connection("local"), None, None)
    assert job.environment({}, {"PYSPARK_PYTHON": "/opt/python"}) == {
        "PYSPARK_PYTHON": "/opt/python"
    }


@pytest.mark.parametrize(
    ("host", "mode", "handed_over"),
    [
        ("local[2]", None, True),
        ("spark://master:7077", "client", True),
        ("spark://master:7077", "cluster", False),
        ("k8s://https://host:443", None, False),
        ("yarn", "client", False),
        # SparkSubmitHook takes these two for clusters of the other kinds.
        ("spark://yarn-gateway:7077", "client", False),
        ("spark://master.k8s.local:7077", "client", False),
    ],
)
def test_secrets_are_in_the_environment_only_where_it_is_no_command_line(
    host: str, mode: str | None, handed_over: bool
) -> None:
    job = SparkJob.prepare(spark_connection(host), mode, "/opt/spark/bin/spark-submit")
    found = job.environment({"AWS_SECRET_ACCESS_KEY": CANARY}, {"A": "b"})
    assert found == ({"AWS_SECRET_ACCESS_KEY": CANARY, "A": "b"} if handed_over else {"A": "b"})


@pytest.mark.parametrize(
    ("mode", "conf", "said", "is_cluster"),
    [
        (None, {"spark.submit.deployMode": "cluster"}, "spark.submit.deployMode client", True),
        (None, {}, "spark.submit.deployMode = cluster \n", True),
        (None, {}, "spark.submit.deployMode cluster\nspark.submit.deployMode client", False),
        (None, {}, "spark.mine 1", False),
        ("client", {"spark.submit.deployMode": "cluster"}, "", False),
    ],
)
def test_the_deploy_mode_is_where_spark_submit_looks_for_it(
    tmp_path: Path, mode: str | None, conf: dict[str, str], said: str, is_cluster: bool
) -> None:
    given = tmp_path / "mine.properties"
    given.write_text(said)
    for host, secrets_seen in (("k8s://https://host:443", is_cluster), ("spark://m:7077", False)):
        job = SparkJob.prepare(spark_connection(host), mode, "x", conf, str(given))
        assert job.has_config_map is secrets_seen
        assert job.driver_is_here is (host.startswith("spark:") and not is_cluster)


def test_the_deploy_mode_may_stand_in_sparks_own_defaults(tmp_path: Path) -> None:
    binary = spark_home(tmp_path / "spark")
    defaults = tmp_path / "spark" / "conf" / "spark-defaults.conf"
    defaults.write_text("spark.submit.deployMode cluster\n")
    job = SparkJob.prepare(spark_connection("k8s://https://host:443"), None, str(binary))
    assert job.has_config_map


def test_what_the_user_hides_is_hidden_beside_the_secrets() -> None:
    job = SparkJob.prepare(spark_connection("local"), None, "x")
    given = {"spark.redaction.regex": "my: own", "spark.x": "1"}
    assert "spark.redaction.regex" not in job.merged_conf({}, given)
    with job.files({"spark.a": "b"}, None, given) as files:
        lines = Path(files.properties_file).read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("spark.redaction.regex="))
    assert line.startswith(r"spark.redaction.regex=my\:\ own|(?i)secret")


def test_configuration_of_the_user_wins_and_extensions_add_up() -> None:
    job = SparkJob.prepare(spark_connection("local"), None, "x")
    merged = job.merged_conf(
        {"spark.sql.extensions": "Iceberg", "spark.sql.catalog.lake.uri": "a"},
        {"spark.sql.extensions": "Mine,Iceberg", "spark.sql.catalog.lake.uri": "b", "spark.x": "1"},
    )
    assert merged == {
        "spark.sql.extensions": "Iceberg,Mine",
        "spark.sql.catalog.lake.uri": "b",
        "spark.x": "1",
    }


@pytest.mark.slow
def test_what_a_killed_jvm_leaves_behind_is_killed_too() -> None:
    """As ``SparkSubmitHook.on_kill`` leaves the Python driver: the parent dies, its child lives on."""
    import psutil

    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    )
    process = psutil.Process(parent.pid)
    while not process.children():
        assert parent.poll() is None
    (child,) = process.children()
    with kill_descendants(process):
        parent.kill()
        parent.wait()
        assert child.is_running()
    assert not child.is_running()
