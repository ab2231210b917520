"""The cells of the matrix: the versions that the package is tested with, one row for each set of them.

``docs/reference/compatibility.md`` prints the rows with what was run, and a test holds that page to this
table.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgoutput.batch.spark_packages import ICEBERG
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
    :ivar scala: the Scala of Spark.
    :ivar iceberg: the jar of Iceberg for this Spark.
    """

    name: str
    airflow: str
    python: str
    postgres: int
    also: tuple[str, ...] = ()
    spark: str = "4.1.3"
    scala: str = "2.13"
    iceberg: Artifact = ICEBERG_SPARK_RUNTIME


#: With newer ones Airflow 3.2.2 ends each task, see ``docs/reference/compatibility.md``.
_BESIDE_3_2 = ("fastapi<0.137", "svcs<26")


def _iceberg(spark: str, scala: str, sha256: str) -> Artifact:
    """Iceberg's jar for another Spark, in the version that ``packages="auto"`` takes."""
    minor = ".".join(spark.split(".")[:2])
    runtime = f"iceberg-spark-runtime-{minor}_{scala}"
    return Artifact("org.apache.iceberg", runtime, ICEBERG[minor, scala], sha256)


def _of_spark(spark: str, scala: str, postgres: int, iceberg: Artifact) -> Cell:
    """A cell of another Spark."""
    minor = ".".join(spark.split(".")[:2])
    return Cell(
        f"spark-{minor}-scala-{scala}",
        "3.2.*",
        "3.11",
        postgres,
        also=_BESIDE_3_2,
        spark=spark,
        scala=scala,
        iceberg=iceberg,
    )


_OLDEST_SPARK = ("3.5.9", "2.12")
_FOR_OLDEST_SPARK = _iceberg(
    *_OLDEST_SPARK, "8dd8c90e54ed1a20f2461309d047a255ee56382eb7c0a46162b27a4936fd86dc"
)

#: The lowest version of everything. The test suite runs this one.
LOWEST = Cell(
    "lowest",
    "3.1.1",
    "3.11",
    15,
    also=("structlog<25.5",),
    spark=_OLDEST_SPARK[0],
    scala=_OLDEST_SPARK[1],
    iceberg=_FOR_OLDEST_SPARK,
)
CELLS = (
    LOWEST,
    Cell("airflow-3.1", "3.1.*", "3.11", 15),
    Cell("airflow-3.1-python-3.13", "3.1.*", "3.13", 18),
    Cell("airflow-3.2", "3.2.*", "3.12", 17, also=_BESIDE_3_2),
    Cell("airflow-3.2-python-3.11", "3.2.*", "3.11", 18, also=_BESIDE_3_2),
    Cell("airflow-3.3", "3.3.*", "3.13", 18),
    Cell("airflow-3.3-python-3.12", "3.3.*", "3.12", 18),
    _of_spark(*_OLDEST_SPARK, 17, _FOR_OLDEST_SPARK),
    _of_spark(
        *("3.5.9", "2.13", 17),
        _iceberg(
            *("3.5.9", "2.13"), "86e763a4f1b1b83f47306a1ec34c8b719002f08bb4b1adcaea520888234f1c81"
        ),
    ),
    _of_spark(
        *("4.0.5", "2.13", 16),
        _iceberg(
            *("4.0.5", "2.13"), "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc"
        ),
    ),
)
