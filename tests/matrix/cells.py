"""The cells of the matrix: the versions that the package is tested with, one row for each set of them.

``docs/compatibility.md`` prints the rows with what was run, and a test holds that page to this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from quickstart.jars import ICEBERG_SPARK_RUNTIME, Artifact


@dataclass(frozen=True, slots=True)
class Cell:
    """One set of versions.

    :ivar name: what ``make matrix CELL=...`` takes.
    :ivar airflow: Airflow's version as pip takes it, ``3.1.*`` or ``3.1.1``.
    :ivar python: the Python of Airflow and of Spark's driver, as ``3.11``.
    :ivar postgres: the server's major version.
    :ivar also: more requirements, for an Airflow that the newest packages broke.
    :ivar spark: the version of pyspark, which is a whole Spark.
    :ivar iceberg: the jar of Iceberg for this Spark.
    """

    name: str
    airflow: str
    python: str
    postgres: int
    also: tuple[str, ...] = ()
    spark: str = "4.1.3"
    iceberg: Artifact = ICEBERG_SPARK_RUNTIME


#: The lowest Airflow and the lowest Python come first. The test suite runs this one.
CELLS = (
    Cell("airflow-3.1.1", "3.1.1", "3.11", 15, also=("structlog<25.5",)),
    Cell("airflow-3.1", "3.1.*", "3.11", 15),
    Cell("airflow-3.1-python-3.13", "3.1.*", "3.13", 18),
    Cell("airflow-3.2", "3.2.*", "3.12", 17, also=("fastapi<0.137",)),
    Cell("airflow-3.2-python-3.11", "3.2.*", "3.11", 18, also=("fastapi<0.137",)),
    Cell("airflow-3.3", "3.3.*", "3.13", 18),
    Cell("airflow-3.3-python-3.12", "3.3.*", "3.12", 18),
)
LOWEST = CELLS[0]
