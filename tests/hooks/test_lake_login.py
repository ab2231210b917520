"""Both engines send a REST catalog the same credential: what pyiceberg and Java really send."""

from __future__ import annotations

import base64
import http.server
import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from airflow.sdk import Connection
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog
from tests.iceberg_java import ask_java, iceberg_java, java_properties
from tests.json_server import JsonHandler, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECRET = "it's a secret: ü"
BASIC = {"type": "basic", "basic": {"username": "me", "password": "p"}}


@dataclass(frozen=True)
class Sent:
    """What one client sent."""

    #: Client, secret and scope of each request for a token.
    tokens: list[tuple[str, str, str]] = field(default_factory=list)
    #: ``Authorization`` of each request to the catalog.
    authorizations: set[str | None] = field(default_factory=set)
    delegations: set[str | None] = field(default_factory=set)


class Recorder(JsonHandler, http.server.BaseHTTPRequestHandler):
    """A REST catalog without tables. It takes any login, and notes it."""

    sent = Sent()

    def do_GET(self) -> None:
        self.sent.authorizations.add(self.headers["Authorization"])
        self.sent.delegations.add(self.headers["X-Iceberg-Access-Delegation"])
        self.answer({"defaults": {}, "overrides": {}, "namespaces": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: value[0] for name, value in parse_qs(body).items()}
        header = self.headers["Authorization"] or ""
        if header.startswith("Basic "):
            client, _, secret = base64.b64decode(header[6:]).decode().partition(":")
        else:
            client, secret = form["client_id"], form["client_secret"]
        self.sent.tokens.append((client, secret, form["scope"]))
        self.answer(
            {
                "access_token": "a-token",
                "token_type": "bearer",
                "expires_in": 3600,
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            }
        )


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A catalog that notes what it is sent."""
    with serving(Recorder) as found:
        yield found


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with iceberg_java() as found:
        yield found


def catalog_of(**fields: Any) -> LakeCatalog:
    extra = fields.pop("extra", {})
    connection = Connection(conn_id="lake", conn_type="iceberg", extra=json.dumps(extra), **fields)
    return lake_catalog(connection, extra)


def sent_by_python(lake: LakeCatalog) -> Sent:
    Recorder.sent = Sent()
    with warnings.catch_warnings():
        # pyiceberg wants oauth2-server-uri to be named.
        warnings.simplefilter("ignore", DeprecationWarning)
        load_catalog(lake.name, **lake.pyiceberg_properties).list_namespaces()
    return Recorder.sent


def sent_by_java(lake: LakeCatalog, jvm: Any) -> Sent:
    Recorder.sent = Sent()
    ask_java(lake, jvm)
    return Recorder.sent


def oauth2(port: int) -> dict[str, str]:
    return {
        "client_id": "someone",
        "client_secret": _SECRET,
        "token_url": f"http://127.0.0.1:{port}/elsewhere/token",
        "scope": "PRINCIPAL_ROLE:ALL",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["login", "login and scope", "token", "oauth2", "basic", "a header of its own", "a role"],
)
def test_both_engines_send_the_same_credential(kind: str, port: int, jvm: Any) -> None:
    extras: dict[str, dict[str, Any]] = {
        "login": {},
        "login and scope": {
            "oauth2-server-uri": f"http://127.0.0.1:{port}/elsewhere/token",
            "scope": "all",
        },
        "token": {"token": "t-o-k-e-n"},
        "oauth2": {"auth": {"type": "oauth2", "oauth2": oauth2(port)}},
        "basic": {"auth": {"type": "basic", "basic": {"username": "me", "password": _SECRET}}},
        "a header of its own": {"auth": {"type": "noop"}, "header.Authorization": "Key k"},
        "a role": {"token": "t", "header.X-Iceberg-Access-Delegation": "remote-signing"},
    }
    login = {"login": "someone", "password": _SECRET} if kind.startswith("login") else {}
    # The port of the connection belongs to the address of the catalog.
    lake = catalog_of(host="http://127.0.0.1", port=port, extra=extras[kind], **login)
    python, java = sent_by_python(lake), sent_by_java(lake, jvm)
    assert (java.authorizations, java.delegations) == (python.authorizations, python.delegations)
    assert set(java.tokens) == set(python.tokens)
    assert python.authorizations - {None, "Bearer None"}, "pyiceberg logged in"
    assert bool(python.tokens) == (kind in {"login", "login and scope", "oauth2"})


def test_keys_that_sign_requests_are_given_to_java_under_its_names() -> None:
    keys = {"client.access-key-id": "id", "client.secret-access-key": _SECRET}
    extra = {**keys, "client.session-token": "t", "client.region": "eu-west-1"}
    lake = catalog_of(host="https://c", extra={**extra, "rest.sigv4-enabled": True})
    found = java_properties(lake)
    assert {name: found[name] for name in found if name.startswith("rest.")} == {
        "rest.sigv4-enabled": "true",
        "rest.auth.type": "sigv4",
        "rest.access-key-id": "id",
        "rest.secret-access-key": _SECRET,
        "rest.session-token": "t",
        "rest.signing-region": "eu-west-1",
    }
    assert _SECRET not in json.dumps(lake.spark_conf)
    # Beside the signature both engines send what auth says.
    auth = {"type": "basic", "basic": {"username": "me", "password": "p"}}
    lake = catalog_of(host="https://c", extra={**extra, "rest.sigv4-enabled": True, "auth": auth})
    assert java_properties(lake)["rest.auth.sigv4.delegate-auth-type"] == "basic"


@pytest.mark.parametrize(
    ("given", "signs"),
    [
        ("True", True),
        ("1", True),
        ("yes", True),
        ("on", True),
        ("t", True),
        ("FALSE", False),
        ("0", False),
    ],
)
def test_whether_requests_are_signed_is_the_same_for_both_engines(
    given: str, *, signs: bool
) -> None:
    keys = {"client.access-key-id": "id", "client.secret-access-key": _SECRET}
    lake = catalog_of(host="https://c", extra={**keys, "rest.sigv4-enabled": given})
    found = java_properties(lake)
    assert found["rest.sigv4-enabled"] == str(signs).lower()
    assert lake.pyiceberg_properties["rest.sigv4-enabled"] == str(signs).lower()
    assert (found.get("rest.auth.type") == "sigv4") == signs
    assert ("rest.secret-access-key" in found) == signs


def test_google_is_given_to_java_and_what_java_lacks_is_named() -> None:
    google = {"credentials_path": "/key.json", "scopes": ["a", "b"]}
    lake = catalog_of(host="https://c", extra={"auth": {"type": "google", "google": google}})
    found = java_properties(lake)
    assert found["rest.auth.type"] == "google"
    assert found["gcp.auth.credentials-path"] == "/key.json"
    assert found["gcp.auth.scopes"] == "a,b"
    assert lake.pyiceberg_properties["auth"]["google"] == google
    # Without a scope pyiceberg would ask for none, and Java for this one.
    alone = catalog_of(host="https://c", extra={"auth": {"type": "google"}})
    (scope,) = alone.pyiceberg_properties["auth"]["google"]["scopes"]
    assert java_properties(alone)["gcp.auth.scopes"] == scope
    assert lake.login_not_for_spark is None
    entra = {"auth": {"type": "entra"}}
    assert catalog_of(host="https://c", extra=entra).login_not_for_spark == "entra"
    # Java's own login among the extras serves as well.
    both = {**entra, "rest.auth.type": "org.example.Manager"}
    assert catalog_of(host="https://c", extra=both).login_not_for_spark is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra": {"auth": {"type": "oauth2", "oauth2": {"client_id": "c"}}}}, "lacks client_sec"),
        (
            {"extra": {"rest.sigv4-enabled": True, "rest.access-key-id": "k"}},
            "client.access-key-id",
        ),
        ({"extra": {"rest.sigv4-enabled": True, "client.profile-name": "p"}}, "AWS_PROFILE"),
        ({"extra": {"rest.sigv4-enabled": "maybe"}}, "neither true nor false"),
        ({"extra": {"header.Authorization": "Key k"}}, "noop"),
        ({"extra": {"auth": BASIC}, "login": "me", "password": "p"}, "auth and credential"),
        ({"extra": {"auth": BASIC, "credential": "me:p"}}, "auth and credential"),
        ({"extra": {"auth": BASIC, "token": "t"}}, "auth and token"),
        ({"extra": {"auth": {"type": "entra"}, "token": "t"}}, "auth and token"),
        ({"host": "https://c:abc", "port": 8182}, "not a number"),
        ({"host": "postgresql://me:p/q@c/lake", "extra": {"type": "sql"}}, "not a number"),
        ({"host": "https://c:8181", "port": 8182}, "one place only"),
        ({"host": "catalog.example", "port": 8182}, "catalog's URI"),
    ],
)
def test_what_would_mean_two_things_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        catalog_of(**{"host": "https://c", **fields})
