"""What Airflow asks a provider about itself. Imports nothing heavy: it runs at every start of Airflow."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgoutput import __version__


def get_provider_info() -> dict[str, Any]:
    """Metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-pgoutput",
        "name": "pgoutput",
        "description": (
            "PostgreSQL logical replication (pgoutput) to Apache Iceberg tables through Spark, "
            "exactly once."
        ),
        "versions": [__version__],
    }
