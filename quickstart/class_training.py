"""A Spark job that does a little of everything that the pipeline's jobs do; see ``class_archive.py``.

Java notes the classes that it loads. What the job reads and writes does not matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql.window import Window

_CATALOG = "training"
_TABLE = f"{_CATALOG}.db.rows"


def main(folder: Path) -> None:
    """Write files, make a table of them, change it in every way."""
    spark = SparkSession.builder.appName("class-training").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    staged = str(folder / "staged")
    rows = spark.range(1000).selectExpr(
        "id",
        "cast(id % 7 as int) AS number",
        "cast(id AS string) AS text",
        "cast(id AS decimal(20, 4)) AS amount",
        "timestamp_micros(id) AS at",
        "date_add(date'2020-01-01', cast(id % 99 AS int)) AS day",
        "cast(id AS double) AS ratio",
        "id % 2 = 0 AS flag",
        "cast(cast(id AS string) AS binary) AS bytes",
        "array(id, id + 1) AS list",
        "named_struct('a', id, 'b', cast(id AS string)) AS pair",
        "map(cast(id AS string), id) AS pairs",
    )
    rows.write.parquet(staged)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_CATALOG}.db")
    for version in (2, 3):
        _table(spark, staged, version)
    spark.stop()


def _table(spark: SparkSession, staged: str, version: int) -> None:
    table = f"{_TABLE}_{version}"
    read = spark.read.parquet(staged)
    columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in read.schema)
    modes = ", ".join(
        f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge")
    )
    spark.sql(
        f"CREATE TABLE {table} ({columns}) USING iceberg PARTITIONED BY (bucket(4, id))"
        f" TBLPROPERTIES ('format-version' = '{version}', {modes})"
    )
    read.writeTo(table).append()
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH next")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN extra string")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('note' = 'text')")
    newest = Window.partitionBy("id").orderBy(F.col("number").desc())
    folded = (
        read.withColumn("rank", F.row_number().over(newest))
        .where("rank = 1 AND (id IN (1, 2, 3) OR id BETWEEN 10 AND 20)")
        .withColumn("text", F.coalesce("text", F.lit("none")))
        .drop("rank")
        .cache()
    )
    folded.groupBy("flag").agg(
        F.count("*"), F.max("id"), F.collect_list("id"), F.first("text")
    ).collect()
    folded.createOrReplaceTempView("folded")
    spark.sql(f"DELETE FROM {table}.branch_next WHERE id IN (SELECT id FROM folded)")
    folded.withColumn("extra", F.lit("more")).writeTo(f"{table}.branch_next").append()
    spark.sql(f"DELETE FROM {table}.branch_next WHERE id = 5")
    spark.sql(f"UPDATE {table} SET text = 'other' WHERE id = 6")
    spark.sql(
        f"MERGE INTO {table} AS old USING folded AS new ON old.id = new.id WHEN MATCHED THEN UPDATE SET"
        " text = new.text WHEN NOT MATCHED THEN INSERT (id, text) VALUES (new.id, new.text)"
    )
    kept = spark.table(table).join(folded.select("id", "text"), ["id"], "left_anti")
    kept.unionByName(folded, allowMissingColumns=True).orderBy("id").limit(5).collect()
    spark.table(table).join(F.broadcast(folded.select("id", "number")), "id", "left_outer").count()
    for name in ("snapshots", "files", "refs", "history"):
        spark.sql(f"SELECT * FROM {table}.{name}").collect()
    spark.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => 'db.rows_{version}')").collect()
    spark.sql(f"CALL {_CATALOG}.system.expire_snapshots(table => 'db.rows_{version}')").collect()
    spark.sql(f"ALTER TABLE {table} DROP BRANCH next")
    spark.sql(f"DROP TABLE {table} PURGE")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
