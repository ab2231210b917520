"""Signed requests and Google's login of a REST catalog: both engines send the same credential.

Each needs packages that the suite lacks: the SDK of AWS, or Google's library. ``tests/hooks`` has the logins
that need none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import importlib.metadata
import json
import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from airflow.sdk import Connection
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from airflow_provider_pgoutput.batch.spark_packages import aws
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import spark_home
from tests.iceberg_java import ask_java, iceberg_java
from tests.json_server import JsonHandler, serving
from tests.lakes.programs import Unavailable, jars, python_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SECRET = "secret of AWS"
_GOOGLE = "com.google.auth:google-auth-library-oauth2-http:1.39.1"
_SCOPE = "https://www.googleapis.com/auth/"
_ASK = """
import json, sys
from pyiceberg.catalog import load_catalog
load_catalog("lake", **json.load(sys.stdin)).list_namespaces()
"""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=(\w+)"
)


@dataclass(frozen=True)
class Request:
    """A request to the catalog, with its headers by their names in lower case."""

    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Sent:
    """What one client sent."""

    requests: list[Request] = field(default_factory=list)
    #: Of each request for a token: the assertion with which a service account of Google asks.
    assertions: list[str] = field(default_factory=list)


class Recorder(JsonHandler, http.server.BaseHTTPRequestHandler):
    """A REST catalog without tables, and Google's service of tokens. It takes any login, and notes it."""

    sent = Sent()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.sent.requests.append(Request(path, query, headers))
        self.answer({"defaults": {}, "overrides": {}, "namespaces": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.sent.assertions.extend(parse_qs(body)["assertion"])
        self.answer({"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A catalog that notes what it is sent."""
    with serving(Recorder) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def python() -> Path:
    """A worker's Python with pyiceberg's extras for both logins."""
    version = importlib.metadata.version("pyiceberg")
    try:
        return python_with("logins", f"pyiceberg[rest-sigv4,gcp-auth]=={version}") / "python"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """Java with Iceberg, the bundle for AWS, and Google's library."""
    try:
        more = jars("aws", *aws(versions_of(spark_home())).coordinates, alone=True)
        more += jars("google-auth", _GOOGLE)
    except Unavailable as error:
        pytest.skip(str(error))
    with iceberg_java(*more) as found:
        yield found


def _catalog(url: str, **extra: object) -> LakeCatalog:
    login = Connection(conn_id="lake", conn_type="iceberg", host=url, extra=json.dumps(extra))
    return lake_catalog(login, extra)


def _sent_by_both(lake: LakeCatalog, python: Path, jvm: Any) -> list[Sent]:
    """What pyiceberg sent, and what Java sent."""
    Recorder.sent = by_python = Sent()
    given = json.dumps(lake.pyiceberg_properties)
    done = subprocess.run(
        [python, "-c", _ASK], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    Recorder.sent = by_java = Sent()
    ask_java(lake, jvm)
    return [by_python, by_java]


@pytest.mark.further
@pytest.mark.parametrize("token", [None, "token of a session"])
@pytest.mark.parametrize("service", [None, "glue"])
def test_both_engines_sign_with_the_same_key(
    url: str, python: Path, jvm: Any, token: str | None, service: str | None
) -> None:
    keys = {"client.access-key-id": "AKIA0", "client.secret-access-key": _SECRET}
    extra = {**keys, "client.region": "eu-west-1", "rest.sigv4-enabled": True}
    extra |= {"client.session-token": token} if token else {}
    extra |= {"rest.signing-name": service} if service else {}
    for sent in _sent_by_both(_catalog(url, **extra), python, jvm):
        assert len(sent.requests) >= 2, "it asks for the configuration and for the namespaces"
        for request in sent.requests:
            found = _AUTHORIZATION.fullmatch(request.headers["authorization"])
            assert found, request
            key, scope, names, signature = found.groups()
            assert key == "AKIA0"
            assert scope.split("/")[1:] == ["eu-west-1", service or "execute-api", "aws4_request"]
            assert signature == _signature(request, scope, names)
            assert request.headers.get("x-amz-security-token") == token


def _signature(request: Request, scope: str, names: str) -> str:
    """The signature of a request without a body, by Amazon's rules.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    headers = "".join(
        f"{name}:{' '.join(request.headers[name].split())}\n" for name in names.split(";")
    )
    body = hashlib.sha256(b"").hexdigest()
    canonical = "\n".join(("GET", request.path, request.query, headers, names, body))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, digest))
    key = f"AWS4{_SECRET}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@pytest.mark.further
@pytest.mark.parametrize(
    ("scopes", "asked"),
    [
        (
            [f"{_SCOPE}bigquery", f"{_SCOPE}devstorage"],
            [f"{_SCOPE}bigquery", f"{_SCOPE}devstorage"],
        ),
        ([], [f"{_SCOPE}cloud-platform"]),
    ],
    ids=["scopes", "none"],
)
def test_both_engines_ask_google_for_the_same_token(
    url: str, python: Path, jvm: Any, tmp_path: Path, scopes: list[str], asked: list[str]
) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "project_id": "p",
        "client_id": "1",
        "client_email": "pipeline@p.iam.gserviceaccount.com",
        "private_key_id": "k",
        "private_key": text.decode(),
        "token_uri": f"{url}/token",
    }
    file = tmp_path / "key.json"
    file.write_text(json.dumps(account), encoding="utf-8")
    google = {"credentials_path": str(file), **({"scopes": scopes} if scopes else {})}
    lake = _catalog(url, auth={"type": "google", "google": google})
    for sent in _sent_by_both(lake, python, jvm):
        assert {each.headers["authorization"] for each in sent.requests} == {"Bearer a-token"}
        assert sent.assertions
        for each in sent.assertions:
            signed, _, signature = each.rpartition(".")
            # It raises if another key signed.
            private.public_key().verify(
                _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            claims = json.loads(_decoded(signed.partition(".")[2]))
            assert claims["iss"] == account["client_email"]
            assert claims["scope"].split() == asked


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
