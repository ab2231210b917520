"""pyiceberg's credentials of object stores, under the names that Iceberg's Java has for them.

What both spell alike (``s3.access-key-id``, ``gcs.oauth2.token``) passes as it is. What is not here: the
other properties of a catalog (``lake_catalog.py``).

Sources: https://py.iceberg.apache.org/configuration/#fileio,
https://iceberg.apache.org/docs/latest/aws/#s3-fileio and, for Azure, ``AzureProperties`` of iceberg-azure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: pyiceberg takes these for any service of AWS that has no keys of its own; Java has them for S3 alone.
_OF_S3 = {
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}
#: Java takes both or none.
_SHARED_KEY = {
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
_SAS_TOKEN = "adls.sas-token"  # noqa: S105 - the name of a property
_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
_AZURE_DOMAIN = ".dfs.core.windows.net"

#: How pyiceberg may log in, and Java only by other ways: a profile and a principal of Azure come from the
#: environment, a role needs a client factory, and its connection string of Azure is no more than an endpoint.
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
    """Translate what is sure, and name the credentials that are left, which Java does not read.

    What the user gave under Java's own name stays.
    """
    java = dict(given)
    for name, theirs in _names(given).items():
        value = java.pop(name)
        java.setdefault(theirs, value)
    return java, tuple(sorted(_PYICEBERG_ONLY & java.keys()))


def _names(given: Mapping[str, str]) -> dict[str, str]:
    """Java's names of what was given under another one."""
    names = dict(_OF_S3)
    if _SHARED_KEY.keys() <= given.keys():
        names |= _SHARED_KEY
    if host := _azure_host(given):
        # Java looks for one by the host in a file's URI.
        names[_SAS_TOKEN] = f"{_SAS_TOKEN}.{host}"
    return {name: theirs for name, theirs in names.items() if name in given}


def _azure_host(given: Mapping[str, str]) -> str | None:
    """The host of the storage account: that of the warehouse, or what the account's name stands for."""
    warehouse = urlsplit(given.get("warehouse", ""))
    if warehouse.scheme in _AZURE_SCHEMES:
        return warehouse.netloc.rpartition("@")[2]
    account = given.get("adls.account-name")
    return f"{account}{given.get('adls.dfs-storage-authority', _AZURE_DOMAIN)}" if account else None
