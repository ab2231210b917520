"""Translates pyiceberg's credentials of object stores to the names that Iceberg's Java has for them.

Properties with the same name in both (``s3.access-key-id``, ``gcs.oauth2.token``) stay as they are.
``lake_catalog.py`` translates the other properties of a catalog.

Sources: https://py.iceberg.apache.org/configuration/#fileio,
https://iceberg.apache.org/docs/latest/aws/#s3-fileio and, for Azure, ``AzureProperties`` of iceberg-azure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: pyiceberg uses these for every AWS service without keys of its own. Java has them for S3 only.
_OF_S3 = {
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}
#: Java takes both or neither.
_SHARED_KEY = {
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
_SAS_TOKEN = "adls.sas-token"  # noqa: S105 - the name of a property
_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
_AZURE_DOMAIN = ".dfs.core.windows.net"

#: Logins of pyiceberg that Java does not take from such properties. It takes an AWS profile and an Azure
#: principal from the environment, and it needs a client factory for an AWS role. Its connection string of
#: Azure is only an endpoint.
_PYICEBERG_ONLY = frozenset(
    {
        "adls.account-key",
        "adls.client-id",
        "adls.client-secret",
        "adls.connection-string",
        "adls.credential",
        "adls.tenant-id",
        _SAS_TOKEN,
        *(
            f"{of}.{name}"
            for of in ("client", "s3")
            for name in ("profile-name", "role-arn", "role-session-name")
        ),
    }
)


def java_storage(given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Translate what can be translated, and name the other credentials, which Java does not read.

    A property that the user gave under Java's own name stays.
    """
    java = dict(given)
    for name, theirs in _names(given).items():
        value = java.pop(name)
        java.setdefault(theirs, value)
    return java, tuple(sorted(_PYICEBERG_ONLY & java.keys()))


def _names(given: Mapping[str, str]) -> dict[str, str]:
    """Java's names for properties that were given under other names."""
    names = dict(_OF_S3)
    if _SHARED_KEY.keys() <= given.keys():
        names |= _SHARED_KEY
    if host := _azure_host(given):
        # Java looks for the token by the host in a file's URI.
        names[_SAS_TOKEN] = f"{_SAS_TOKEN}.{host}"
    return {name: theirs for name, theirs in names.items() if name in given}


def _azure_host(given: Mapping[str, str]) -> str | None:
    """The storage account's host: from the warehouse, or made of the account's name."""
    warehouse = urlsplit(given.get("warehouse", ""))
    if warehouse.scheme in _AZURE_SCHEMES:
        return warehouse.netloc.rpartition("@")[2]
    account = given.get("adls.account-name")
    return f"{account}{given.get('adls.dfs-storage-authority', _AZURE_DOMAIN)}" if account else None
