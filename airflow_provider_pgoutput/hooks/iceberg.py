"""Airflow's door to the lake's catalog: resolves the connection and hides its secrets from logs.

Opening tables is left to pyiceberg and Spark; what a connection means to them is in
``lake_catalog.py``.
"""

from __future__ import annotations

import re

from airflow.sdk.log import mask_secret

from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog

#: Keys whose values are hidden from logs. Others that travel as secrets may be plain words (a user
#: called ``airflow``), which must not be starred out everywhere.
_SECRET_KEY = re.compile(
    r"secret|password|passwd|token|access.?key|credential|\bsas\b|private.?key|account.?key|header\.",
    re.IGNORECASE,
)


def resolve_lake_catalog(iceberg_conn_id: str, catalog_name: str | None = None) -> LakeCatalog:
    """Return the catalog of the connection ``iceberg_conn_id``, its secrets masked in logs from now on.

    :raises ConnectionNotFound: when Airflow does not give the connection.
    :raises ConfigurationError: when Spark could not use it.
    """
    connection = get_connection(iceberg_conn_id)
    catalog = lake_catalog(connection, connection.extra_dejson, catalog_name)
    for properties in (catalog.pyiceberg_properties, catalog.spark_secrets, catalog.environment):
        for key, value in properties.items():
            if _SECRET_KEY.search(key):
                mask_secret(value)
    return catalog
