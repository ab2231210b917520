"""The connections that are used if none is named. Airflow's own providers use these names, too."""

from __future__ import annotations

from typing import Final

POSTGRES: Final = "postgres_default"
ICEBERG: Final = "iceberg_default"
SPARK: Final = "spark_default"
