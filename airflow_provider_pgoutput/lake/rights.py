"""Tries, before a slot exists, whether a login may write to catalog and warehouse. No table stays there.

* A REST catalog prepares a table (``stage-create``). The table is in the catalog only when it is committed,
  and here it never is. A namespace that is missing is made, and stays.
* The database of a SQL catalog gets the row of a table, which is changed and deleted again, in a transaction
  that is rolled back.
* Glue is asked to change a table that is not there, and to make one in a database that is not there. It
  refuses a login first, and else it finds nothing. In a database that is there the right to make tables is
  not tried: the table would be made.
* A Hive metastore offers no such trial. A table that is made and dropped again would be in its log of events.
* The warehouse of a SQL catalog, Hive or Glue gets an object, which is read and deleted. A REST catalog
  says only for a table where it is, and may give keys only for it.

A login that only the worker may have, such as an IAM role, is not tried: Spark may have another one. The log
says what was not tried, and why.

Sources:
https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml (createTable)
https://py.iceberg.apache.org/configuration/#sql-catalog
https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html
https://docs.aws.amazon.com/glue/latest/webapi/API_CreateTable.html
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
)
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.logins import no_keys_for_warehouse, no_login_for_catalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO

log = logging.getLogger(__name__)

#: What Iceberg puts behind the name of a namespace, to get its folder in the warehouse.
_FOLDER_ENDS = {"sql": "", "hive": ".db", "glue": ".db"}
#: IAM refuses in these words. Lake Formation has others, and it may refuse only because nothing is there.
_IAM_REFUSES = "not authorized to perform: glue:"
_MISSING = "EntityNotFoundException"
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
            if reason := _why_not(catalog):
                log.info("Whether the login may write to the catalog was not tried: %s.", reason)
            else:
                _try_catalog(catalog, namespace, name)
            folder = _folder(catalog, namespace)
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_ADVICE) from None
    except (LakeUnavailable, ConfigurationError) as error:
        # Not every catalog prepares tables. The apply asks again.
        log.info("Whether the login may write was not found out. %s", error)
        return
    if reason := no_keys_for_warehouse(catalog.properties, folder):
        log.info("Whether the warehouse can be written was not tried: %s.", reason)
    else:
        _try_warehouse(catalog, folder, f"{folder}/{name}")


def _why_not(catalog: Catalog) -> str | None:
    if catalog.properties.get("type") == "hive":
        return "a Hive metastore would keep the trial in its log of events"
    return no_login_for_catalog(catalog.properties)


def _try_catalog(catalog: Catalog, namespace: str, name: str) -> None:
    match catalog.properties.get("type"):
        case "rest":
            _prepare_table(catalog, namespace, name)
        case "sql":
            _write_and_roll_back(cast("SqlCatalog", catalog), namespace, name)
        case "glue":
            _change_what_is_missing(cast("GlueCatalog", catalog), namespace, name)


def _prepare_table(catalog: Catalog, namespace: str, name: str) -> None:
    levels = tuple(namespace.split("."))
    if not catalog.namespace_exists(levels):
        catalog.create_namespace_if_not_exists(levels)
    columns = pa.schema([("c", pa.int32())])
    catalog.create_table_transaction((*levels, name), columns)


def _write_and_roll_back(catalog: SqlCatalog, namespace: str, name: str) -> None:
    from pyiceberg.catalog.sql import (  # noqa: PLC0415 - an extra of pyiceberg
        IcebergNamespaceProperties,
        IcebergTables,
    )
    from sqlalchemy import delete, insert, update  # noqa: PLC0415

    of_namespace = {"catalog_name": catalog.name, "namespace": namespace}
    of_table = {"catalog_name": catalog.name, "table_namespace": namespace, "table_name": name}
    location = {"metadata_location": "", "previous_metadata_location": ""}
    found = catalog.namespace_exists(namespace)
    with catalog.engine.connect() as connection:
        if not found:
            row = {**of_namespace, "property_key": name, "property_value": ""}
            connection.execute(insert(IcebergNamespaceProperties).values(row))
        connection.execute(insert(IcebergTables).values(of_table))
        connection.execute(update(IcebergTables).filter_by(**of_table).values(location))
        try:
            with lake_errors("changed"):
                connection.execute(delete(IcebergTables).filter_by(**of_table))
        except LakeDenied as error:
            # Only a drop needs it, and a first run drops nothing.
            log.warning("The login cannot drop a table: it may not delete its row. %s", error)
        connection.rollback()


def _change_what_is_missing(catalog: GlueCatalog, namespace: str, name: str) -> None:
    table = {"DatabaseName": namespace, "TableInput": {"Name": name}}
    _find_nothing(catalog, "UpdateTable", catalog.glue.update_table, table)
    if not catalog.namespace_exists(namespace):
        _find_nothing(catalog, "CreateTable", catalog.glue.create_table, table)


def _find_nothing(
    catalog: GlueCatalog, action: str, ask: Callable[..., object], given: dict[str, Any]
) -> None:
    """Ask Glue to do what it cannot do, because something is missing. Other answers are raised, or logged."""
    try:
        ask(**given)
    except catalog.glue.exceptions.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        if code == _MISSING:
            return
        if code != "AccessDeniedException" or _IAM_REFUSES in str(error):
            raise
        # Lake Formation.
        log.info(
            "Whether the login may write to the catalog was not found out: Glue answers %s with %s.",
            *(action, code),
        )


def _try_warehouse(catalog: Catalog, folder: str, location: str) -> None:
    """Write an object in the folder where the tables of the namespace will be, read it and delete it."""
    from pyiceberg.io import load_file_io  # noqa: PLC0415

    try:
        with lake_errors("opened"):
            files = load_file_io(catalog.properties, folder)
        with lake_errors("written"), files.new_output(location).create(overwrite=True) as output:
            output.write(b"A look whether this can be written.")
        try:
            with lake_errors("read"), files.new_input(location).open() as written:
                written.read()
        finally:
            _delete(files, location)
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_STORE_ADVICE) from None
    except LakeUnavailable as error:
        log.info(
            "Whether the keys open the warehouse was not found out with the object %s. %s",
            *(location, error),
        )


def _delete(files: FileIO, location: str) -> None:
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
