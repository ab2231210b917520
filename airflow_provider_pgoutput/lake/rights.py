"""Tries, before a slot exists, whether a login may write to catalog and warehouse. No table stays there.

* A REST catalog prepares a table (``stage-create``). The table is in the catalog only when it is committed,
  and here it never is. A namespace that is missing is made, and stays.
* The database of a SQL catalog gets the row of a table, in a transaction that is rolled back.
* Glue is asked to change a table that is not there. It refuses a login first, and else it finds no table.
* A Hive metastore offers no such trial. A table that is made and dropped again would be in its log of events.
* The warehouse of a SQL catalog, Hive or Glue gets an object, which is read and deleted. A REST catalog
  says only for a table where it is, and may give keys only for it.

A login that only the worker may have, such as an IAM role, is not tried: Spark may have another one.

Sources:
https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml (createTable)
https://py.iceberg.apache.org/configuration/#sql-catalog
https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import pyarrow as pa

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
)
from airflow_provider_pgoutput.lake.failures import lake_errors

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.sql import SqlCatalog

log = logging.getLogger(__name__)

#: Properties with a login that the connection gives to pyiceberg and Spark. The last is a key of SigV4.
_LOGINS_OF_REST = ("credential", "token", "client.access-key-id")
_LOGINS_OF_GLUE = ("glue.access-key-id", "client.access-key-id")
#: The same for stores, by the scheme of their URIs.
_KEYS_OF_S3 = ("s3.access-key-id", "client.access-key-id")
_KEYS_OF_AZURE = ("adls.account-key", "adls.sas-token")
_KEYS_OF_STORES = {
    "s3": _KEYS_OF_S3,
    "s3a": _KEYS_OF_S3,
    "abfs": _KEYS_OF_AZURE,
    "abfss": _KEYS_OF_AZURE,
}
#: What Iceberg puts behind the name of a namespace, to get its folder in the warehouse.
_FOLDER_ENDS = {"sql": "", "hive": ".db", "glue": ".db"}
#: How IAM refuses. Lake Formation has other words, and it may refuse only because there is no such table.
_IAM_REFUSES = "not authorized to perform: glue:UpdateTable"
_OTHER_LOGIN = (
    "No slot was made. If Spark has another login, let the first run's stage task use that one."
)
_ADVICE = (
    "give the login of the iceberg connection the right to make namespaces and tables: Spark logs in with it,"
    f" too, when it applies the batch. {_OTHER_LOGIN}"
)
_STORE_ADVICE = (
    "give the keys of the iceberg connection the right to read, write and delete in the warehouse: Spark uses"
    f" them, too. {_OTHER_LOGIN}"
)


def refuse_login_that_only_reads(catalog: Catalog, namespace: str) -> None:
    """Try whether the connection's login may make a table. If a REST catalog lacks the namespace, it is made.

    :raises LakeDenied: it may not, or the warehouse refuses its keys.
    :raises ConfigurationError: the warehouse is not there.
    """
    name = f"pgoutput_look_{uuid.uuid4().hex[:8]}"
    try:
        with lake_errors("written"):
            match catalog.properties.get("type"):
                case "sql":
                    _insert_and_roll_back(cast("SqlCatalog", catalog), namespace, name)
                case "rest" if any(map(catalog.properties.get, _LOGINS_OF_REST)):
                    _prepare_table(catalog, namespace, name)
                case "glue" if any(map(catalog.properties.get, _LOGINS_OF_GLUE)):
                    _change_missing_table(cast("GlueCatalog", catalog), namespace, name)
            folder = _folder(catalog, namespace)
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_ADVICE) from None
    except (LakeUnavailable, ConfigurationError) as error:
        # Not every catalog prepares tables. The apply asks again.
        log.info("Whether the login may write was not found out. %s", error)
        return
    if any(map(catalog.properties.get, _KEYS_OF_STORES.get(urlsplit(folder).scheme, ()))):
        _try_warehouse(catalog, folder, f"{folder}/{name}")


def _prepare_table(catalog: Catalog, namespace: str, name: str) -> None:
    levels = tuple(namespace.split("."))
    if not catalog.namespace_exists(levels):
        catalog.create_namespace_if_not_exists(levels)
    columns = pa.schema([("c", pa.int32())])
    catalog.create_table_transaction((*levels, name), columns)


def _insert_and_roll_back(catalog: SqlCatalog, namespace: str, name: str) -> None:
    from pyiceberg.catalog.sql import IcebergTables  # noqa: PLC0415 - an extra of pyiceberg
    from sqlalchemy import insert  # noqa: PLC0415

    row = {"catalog_name": catalog.name, "table_namespace": namespace, "table_name": name}
    with catalog.engine.connect() as connection:
        connection.execute(insert(IcebergTables).values(row))
        connection.rollback()


def _change_missing_table(catalog: GlueCatalog, namespace: str, name: str) -> None:
    try:
        catalog.glue.update_table(DatabaseName=namespace, TableInput={"Name": name})
    except catalog.glue.exceptions.ClientError as error:
        if _IAM_REFUSES in str(error):
            raise


def _try_warehouse(catalog: Catalog, folder: str, location: str) -> None:
    """Write an object in the folder where the tables of the namespace will be, read it and delete it."""
    from pyiceberg.io import load_file_io  # noqa: PLC0415

    try:
        with lake_errors("opened"):
            files = load_file_io(catalog.properties, folder)
        with lake_errors("written"), files.new_output(location).create(overwrite=True) as output:
            output.write(b"A look whether this can be written.")
        with lake_errors("read"), files.new_input(location).open() as written:
            written.read()
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_STORE_ADVICE) from None
    except LakeUnavailable as error:
        log.info("Whether the keys open the warehouse was not found out. %s", error)
        return
    try:
        with lake_errors("changed"):
            files.delete(location)
    except (LakeDenied, LakeUnavailable) as error:
        # The apply does not need it. Maintenance deletes files.
        log.warning("The object %s cannot be deleted from the warehouse. %s", location, error)


def _folder(catalog: Catalog, namespace: str) -> str:
    """Where the tables of a namespace are, or will be; empty: the catalog decides that for each table."""
    from pyiceberg.exceptions import NoSuchNamespaceError  # noqa: PLC0415

    end = _FOLDER_ENDS.get(str(catalog.properties.get("type")))
    if end is None:
        return ""
    try:
        location = catalog.load_namespace_properties(namespace).get("location")
    except NoSuchNamespaceError:
        location = None
    warehouse = catalog.properties.get("warehouse")
    found = location or (
        warehouse and f"{warehouse.rstrip('/')}/{namespace.replace('.', '/')}{end}"
    )
    return (found or "").rstrip("/")
