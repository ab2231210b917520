"""Translates how pyiceberg logs in to a REST catalog, so that Iceberg's Java sends the same credential.

A login that Java does not have is named. ``lake_storage.py`` translates credentials of object stores.

Sources: https://py.iceberg.apache.org/configuration/#authentication-in-restcatalog and, of Iceberg's Java,
``AuthProperties``, ``OAuth2Properties``, ``AwsProperties`` and ``GoogleAuthManager``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: pyiceberg always asks a REST catalog for credentials of the object store. Java asks only if it is told to.
_DELEGATION = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
_AUTH_TYPE = "rest.auth.type"
#: Java's names of a login. Whoever gives one of them to Spark logs in by it.
_JAVA_LOGIN = (_AUTH_TYPE, "credential", "token", "header.Authorization")

#: With SigV4 pyiceberg signs with the keys of all AWS services, and Java with keys of its own.
_SIGNING = {
    "client.access-key-id": "rest.access-key-id",
    "client.secret-access-key": "rest.secret-access-key",
    "client.session-token": "rest.session-token",
    "client.region": "rest.signing-region",
}
_SIGV4 = "rest.sigv4-enabled"
#: What Java asks Google for if nobody names a scope. pyiceberg then asks for none.
_GOOGLE_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def java_login(properties: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Java's properties for the login of a REST catalog, and the login that Java does not have; None: none.

    :param properties: pyiceberg's.
    :raises ConfigurationError: pyiceberg could not log in so, or would send something else than Java.
    """
    if properties.get("type") != "rest":
        return {}, None
    auth = properties.get("auth")
    if auth is None and "header.Authorization" in properties:
        raise ConfigurationError(
            "Iceberg's Java would send header.Authorization, and pyiceberg would replace it by a login.",
            advice='add {"auth": {"type": "noop"}}; then both send the header.',
        )
    given = [name for name in ("credential", "token") if name in properties]
    if auth is not None and given:
        raise ConfigurationError(
            f"The connection has two logins, auth and {given[0]}. pyiceberg would send the first, and"
            " Iceberg's Java may send the other.",
            advice="keep one of the extra auth, the extra token, and login with password (credential).",
        )
    java, unknown = _of_auth(auth) if isinstance(auth, dict) else ({}, None)
    if properties.get(_SIGV4) == "true":
        _check_signing(properties)
        java |= {
            theirs: str(properties[ours]) for ours, theirs in _SIGNING.items() if ours in properties
        }
        if _AUTH_TYPE in java:
            java["rest.auth.sigv4.delegate-auth-type"] = java[_AUTH_TYPE]
        java[_AUTH_TYPE] = "sigv4"
    return {**_DELEGATION, **java}, unknown


def signing_switch(properties: Mapping[str, Any]) -> dict[str, str]:
    """Whether requests are signed, as a text that both engines understand; empty: it is not said.

    pyiceberg takes "1" and "yes" for true, too. Java takes "true" only.

    :raises ConfigurationError: pyiceberg would not understand it.
    """
    if not (given := properties.get(_SIGV4)):
        return {}
    from pyiceberg.types import strtobool

    try:
        return {_SIGV4: "true" if strtobool(str(given)) else "false"}
    except ValueError:
        raise ConfigurationError(
            f"The extra {_SIGV4} is neither true nor false.", advice="give true or false."
        ) from None


def google_scopes(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The login of Google with Java's scope, if the connection names none; empty: nothing is to be added."""
    auth = properties.get("auth")
    if not isinstance(auth, dict) or auth.get("type") != "google":
        return {}
    given = auth.get("google") or {}
    if not isinstance(given, dict) or given.get("scopes"):
        return {}
    return {"auth": {**auth, "google": {**given, "scopes": [*_GOOGLE_SCOPES]}}}


def has_java_login(names: Iterable[str]) -> bool:
    """Whether Java's own properties say how it logs in."""
    return any(name in _JAVA_LOGIN for name in names)


def _of_auth(auth: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    kind = str(auth.get("type"))
    found = auth.get(kind)
    given: Mapping[str, Any] = found if isinstance(found, dict) else {}
    if kind == "noop":
        return {_AUTH_TYPE: "none"}, None
    if kind == "basic":
        names = {f"rest.auth.basic.{name}": given.get(name) for name in ("username", "password")}
        return {_AUTH_TYPE: "basic", **_texts(names)}, None
    if kind == "oauth2":
        return _oauth2(given), None
    if kind == "google":
        scopes = given.get("scopes")
        names = {
            "gcp.auth.credentials-path": given.get("credentials_path"),
            "gcp.auth.scopes": ",".join(scopes) if scopes else None,
        }
        return {_AUTH_TYPE: "google", **_texts(names)}, None
    return {}, kind


def _oauth2(given: Mapping[str, Any]) -> dict[str, str]:
    needed = ("client_id", "client_secret", "token_url", "scope")
    if missing := [name for name in needed if not given.get(name)]:
        raise ConfigurationError(
            f"The login oauth2 in the extra auth lacks {', '.join(missing)}.",
            advice="give all four of client_id, client_secret, token_url and scope. Without a scope pyiceberg"
            " asks for none, but Iceberg's Java for 'catalog'.",
        )
    return {
        _AUTH_TYPE: "oauth2",
        "credential": f"{given['client_id']}:{given['client_secret']}",
        "oauth2-server-uri": str(given["token_url"]),
        "scope": str(given["scope"]),
    }


def _check_signing(properties: Mapping[str, Any]) -> None:
    """Refuse keys that only one of the two engines would sign with."""
    for ours, theirs in _SIGNING.items():
        if theirs == "rest.signing-region":
            continue  # Both engines have this name.
        if theirs in properties and properties.get(ours) != properties[theirs]:
            raise ConfigurationError(
                f"Iceberg's Java would sign requests with {theirs}, and pyiceberg does not read it.",
                advice=f"give the same value as {ours}, which serves both.",
            )
    if "client.profile-name" in properties:
        raise ConfigurationError(
            "pyiceberg would sign requests with client.profile-name, and Iceberg's Java has no profiles.",
            advice="give client.access-key-id and client.secret-access-key, or set AWS_PROFILE in the"
            " environment of the worker and of Spark.",
        )


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value}
