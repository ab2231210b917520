"""What Airflow asks a provider about itself. It runs at every start of Airflow, so it imports nothing heavy.

One field of the wrong shape would stop ``airflow providers list`` for all providers. So a test compares this
with Airflow's own ``provider_info.schema.json``. No connection type is declared here. The source is a
``postgres`` connection, the lake an ``iceberg`` one and the cluster a ``spark`` one, and their providers
declare these types.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_pgoutput import __version__

_INTEGRATION = "PostgreSQL logical replication"
_PACKAGE = "airflow_provider_pgoutput"


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
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://www.postgresql.org/docs/current/logical-replication.html",
                "tags": ["software"],
            }
        ],
        "cli": [f"{_PACKAGE}.cli.definition.get_cli_commands"],
        "hooks": [
            {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.hooks.pgoutput"]}
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    f"{_PACKAGE}.operators.stage",
                    f"{_PACKAGE}.operators.adopt_source",
                    f"{_PACKAGE}.operators.apply",
                    f"{_PACKAGE}.operators.advance",
                    f"{_PACKAGE}.operators.check_health",
                    f"{_PACKAGE}.operators.check_tables",
                    f"{_PACKAGE}.operators.prune",
                    f"{_PACKAGE}.operators.replay",
                    f"{_PACKAGE}.operators.maintain",
                    f"{_PACKAGE}.operators.retire",
                    f"{_PACKAGE}.operators.erase",
                    f"{_PACKAGE}.operators.verify",
                ],
            }
        ],
        "sensors": [
            {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.sensors.changes"]}
        ],
        "extra-links": [
            f"{_PACKAGE}.links.pipeline.{name}"
            for name in ("PageLink", "ManifestLink", "SparkApplicationLink")
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [f"{_PACKAGE}.triggers.changes", f"{_PACKAGE}.triggers.lake"],
            }
        ],
    }
