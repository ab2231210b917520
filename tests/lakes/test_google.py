"""What Google's store refuses is told from what may pass, by Arrow and by Java's client.

The registries have no server of Google's protocol that checks logins. So this one gives Google's answers and
keeps nothing. Both clients are real.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from airflow.sdk import Connection
from pyarrow import fs

from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied, LakeUnavailable
from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from airflow_provider_pgoutput.lake.rights import refuse_login_that_only_reads
from airflow_provider_pgoutput.lake.state import open_catalog
from quickstart.spark import site_conf, spark_environment
from tests.lakes.programs import ROOT, Unavailable, jars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.errors import PgoutputError

#: What is in ``iceberg-gcp-bundle``, which the registry lacks.
_CLIENT = "com.google.cloud:google-cloud-storage:2.78.0"
_TOKEN = "canary-0xC0FFEE"
_NO_BUCKET = "The specified bucket does not exist."
#: Status and reason, Google's words, and the error with which each engine has to end.
_ANSWERS: dict[str, tuple[int, str, str, type[PgoutputError]]] = {
    "login": (401, "authError", "Invalid Credentials", LakeDenied),
    "right": (403, "forbidden", "no storage.objects.create access", LakeDenied),
    "bucket": (404, "notFound", _NO_BUCKET, ConfigurationError),
    "too_often": (403, "rateLimitExceeded", "Rate Limit Exceeded", LakeUnavailable),
}


class _Answering(BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, str, str]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, reason, message = self.answer
        error = {"message": message, "domain": "global", "reason": reason}
        body = json.dumps({"error": {"code": status, "message": message, "errors": [error]}})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Say nothing."""


@contextlib.contextmanager
def _store(status: int, reason: str, message: str) -> Iterator[str]:
    """A store that gives everybody this answer; its host and port."""
    handler = type("Handler", (_Answering,), {"answer": (status, reason, message)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", _ANSWERS)
def test_the_staging_area(name: str) -> None:
    status, reason, message, error = _ANSWERS[name]
    hour = dt.timedelta(hours=1)
    with _store(status, reason, message) as where:
        files = fs.GcsFileSystem(
            endpoint_override=where,
            scheme="http",
            access_token=_TOKEN,
            credential_token_expiration=dt.datetime.now(dt.UTC) + hour,
        )
        with pytest.raises(error) as stop, storage_errors("write"):
            files.open_output_stream("bucket/a").close()
    assert type(stop.value) is error
    assert _TOKEN not in str(stop.value)


# Google's client asks again for seconds after a refused token.
@pytest.mark.parametrize("name", ["right", "bucket", "too_often"])
def test_the_warehouse_before_a_slot_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    status, reason, message, error = _ANSWERS[name]
    in_an_hour = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with _store(status, reason, message) as where, caplog.at_level("INFO"):
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": "gs://bucket/warehouse",
            "gcs.service.host": f"http://{where}",
            "gcs.oauth2.token": _TOKEN,
            "gcs.oauth2.token-expires-at": str(int(in_an_hour.timestamp() * 1000)),
        }
        catalog = open_catalog("lake", properties)
        if error is LakeUnavailable:
            refuse_login_that_only_reads(catalog, "missing")
            assert "the warehouse was not found out" in caplog.text
        else:
            with pytest.raises(error, match="warehouse"):
                refuse_login_that_only_reads(catalog, "missing")
    assert _TOKEN not in caplog.text


def test_an_object_that_is_not_there_is_no_missing_bucket() -> None:
    with _store(404, "notFound", "No such object: bucket/a") as where:
        files = fs.GcsFileSystem(endpoint_override=where, scheme="http", anonymous=True)
        with pytest.raises(LakeUnavailable), storage_errors("read"):
            files.open_input_file("bucket/a")


@pytest.mark.exhaustive
@pytest.mark.submit
def test_spark(tmp_path: Path) -> None:
    try:
        more = jars("google-storage", _CLIENT)
    except Unavailable as error:
        pytest.skip(str(error))
    conf = site_conf("1g")
    conf["spark.jars"] = ",".join((conf["spark.jars"], *map(str, more)))
    with contextlib.ExitStack() as stores:
        for name, (status, reason, message, _) in _ANSWERS.items():
            where = stores.enter_context(_store(status, reason, message))
            extra = {
                "type": "sql",
                "uri": f"sqlite:///{tmp_path}/{name}.db",
                "warehouse": "gs://bucket/warehouse",
                "gcs.service.host": f"http://{where}",
                "gcs.oauth2.token": _TOKEN,
            }
            connection = Connection(conn_id=name, conn_type="iceberg", extra=json.dumps(extra))
            found = lake_catalog(connection, extra, name)
            conf |= found.spark_conf | found.spark_secrets
        request = {"conf": conf, "asked": list(_ANSWERS), "makes": True}
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("ask_spark.py")],
            input=json.dumps(request),
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert _TOKEN not in done.stdout
    answers = json.loads(done.stdout.splitlines()[-1])
    expected = {name: error.__name__ for name, (*_, error) in _ANSWERS.items()}
    # What may pass has no class of its own in Spark, and the task is tried again. Java's client says of a
    # refused token only that it has no newer one. The next try may have one.
    expected |= dict.fromkeys(("login", "too_often"), "SparkFailed")
    assert {name: answer and answer[0] for name, answer in answers.items()} == expected, answers
