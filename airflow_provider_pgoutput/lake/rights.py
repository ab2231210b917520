"""Finds out, before a slot exists, that a login may only read: asks a REST catalog to prepare a table.

A prepared table (``stage-create``) is in no catalog until it is committed, and this one never is. Other types
of catalogs have no such question. Nor is a login tried that only the worker may have, such as an IAM role:
Spark may have another one.

Source: https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml (createTable)
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
)
from airflow_provider_pgoutput.lake.failures import lake_errors

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

#: Properties with a login that the connection gives to both engines.
_LOGINS = ("credential", "token")
_ADVICE = (
    "give the login of the iceberg connection the right to make namespaces and tables: Spark logs in with it,"
    " too, when it applies the batch. No slot was made. If Spark has a login of its own, let the first run's"
    " stage task use that one."
)


def refuse_login_that_only_reads(catalog: Catalog, namespace: str) -> None:
    """Try whether the login of the connection may make a table. A namespace that is missing is made.

    :raises LakeDenied: it may not.
    """
    if catalog.properties.get("type") != "rest" or not any(map(catalog.properties.get, _LOGINS)):
        return
    names = tuple(namespace.split("."))
    try:
        with lake_errors("written"):
            if not catalog.namespace_exists(names):
                catalog.create_namespace_if_not_exists(names)
            columns = pa.schema([("c", pa.int32())])
            catalog.create_table_transaction(
                (*names, f"pgoutput_look_{uuid.uuid4().hex[:8]}"), columns
            )
    except LakeDenied as error:
        raise LakeDenied(error.message, advice=_ADVICE) from None
    except (LakeUnavailable, ConfigurationError) as error:
        # Not every catalog prepares tables. The apply asks again.
        log.info("Whether the login may write was not found out. %s", error)
