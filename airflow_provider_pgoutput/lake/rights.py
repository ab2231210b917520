"""Tries, before a slot exists, whether a login may write to the catalog. No table stays there.

* A REST catalog prepares a table (``stage-create``). The table is in the catalog only when it is committed,
  and here it never is. A namespace that is missing is made, and stays.
* The database of a SQL catalog gets the row of a table, in a transaction that is rolled back.
* Other types of catalogs offer no such trial.

A login that only the worker may have, such as an IAM role, is not tried: Spark may have another one.

Sources:
https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml (createTable)
https://py.iceberg.apache.org/configuration/#sql-catalog
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
)
from airflow_provider_pgoutput.lake.failures import lake_errors

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog

log = logging.getLogger(__name__)

#: Properties with a login that the connection gives to pyiceberg and Spark. The last is a key of SigV4.
_LOGINS_OF_REST = ("credential", "token", "client.access-key-id")
_ADVICE = (
    "give the login of the iceberg connection the right to make namespaces and tables: Spark logs in with it,"
    " too, when it applies the batch. No slot was made. If Spark has a login of its own, let the first run's"
    " stage task use that one."
)


def refuse_login_that_only_reads(catalog: Catalog, namespace: str) -> None:
    """Try whether the connection's login may make a table. If a REST catalog lacks the namespace, it is made.

    :raises LakeDenied: it may not.
    """
    name = f"pgoutput_look_{uuid.uuid4().hex[:8]}"
    try:
        with lake_errors("written"):
            match catalog.properties.get("type"):
                case "sql":
                    _insert_and_roll_back(cast("SqlCatalog", catalog), namespace, name)
                case "rest" if any(map(catalog.properties.get, _LOGINS_OF_REST)):
                    _prepare_table(catalog, namespace, name)
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_ADVICE) from None
    except (LakeUnavailable, ConfigurationError) as error:
        # Not every catalog prepares tables. The apply asks again.
        log.info("Whether the login may write was not found out. %s", error)


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
