"""docs/reference/spark_jars.md has the table of jars that the package has.

``python -m tests.docs.test_spark_jars_page`` draws it anew.
"""

from __future__ import annotations

from pathlib import Path

from airflow_provider_pgoutput.batch.spark_packages import (
    DRIVERS,
    ICEBERG,
    Package,
    SparkVersions,
    aws,
    azure,
    google,
    runtime,
    staging_on_s3,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark_jars.md"
START = "<!-- drawn by tests/docs/test_spark_jars_page.py from batch/spark_packages.py -->"
END = "<!-- end of the drawing -->"
#: Hadoop in each Spark.
_HADOOP = {"3.5": "3.3.4", "4.0": "3.4.1", "4.1": "3.4.2"}


def drawn() -> str:
    lines = ["| needed for | Spark | jars |", "|---|---|---|"]
    sparks = [SparkVersions(spark, scala, _HADOOP[spark]) for spark, scala in ICEBERG]
    lines += [_line(runtime(each), f"{each.spark}, Scala {each.scala}") for each in sparks]
    for client in (aws, google, azure):
        for bundle in dict.fromkeys(client(each) for each in sparks):
            of = [f"{each.spark}, Scala {each.scala}" for each in sparks if client(each) == bundle]
            lines.append(_line(bundle, "<br>".join(of)))
    lines += [_line(each, "all") for each in DRIVERS.values()]
    for spark in _HADOOP:
        found = next(each for each in sparks if each.spark == spark)
        lines.append(_line(staging_on_s3(found), f"{spark} (Hadoop {found.hadoop})"))
    return "\n".join(lines)


def _line(package: Package, spark: str) -> str:
    jars = "<br>".join(f"`{each}`" for each in package.coordinates)
    return f"| {package.needed_for} | {spark} | {jars} |"


def test_the_page_has_the_table_of_the_package() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(START)[2].partition(END)[0].strip() == drawn()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n{drawn()}\n{END}{after}", encoding="utf-8")
