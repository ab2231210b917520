"""A user partitions the lake's tables otherwise, and the source drops what they were partitioned by.

What is not here: the partitions of new tables (``tests/apply/test_users_settings.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import TableRefused
from tests.conformance.one_table import begun
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from tests.conformance.one_table import Lake
    from tests.conformance.pipeline import Pipeline


#: By source column: how the lake's table was once partitioned or sorted by it.
_ONCE = {
    "plain": ("ADD PARTITION FIELD plain", "DROP PARTITION FIELD plain"),
    "hashed": (
        "ADD PARTITION FIELD bucket(4, hashed) AS h",
        "REPLACE PARTITION FIELD h WITH bucket(2, id) AS i",
    ),
    "cut": ("ADD PARTITION FIELD truncate(3, cut) AS c", "DROP PARTITION FIELD c"),
    "day": ("ADD PARTITION FIELD days(day) AS d", "DROP PARTITION FIELD d"),
    "part": ("ADD PARTITION FIELD part.n AS n", "DROP PARTITION FIELD n"),
    "sorted": ("WRITE ORDERED BY sorted", "WRITE UNORDERED"),
    # Renamed at the source afterwards, and retyped, with a copy.
    "old": ("ADD PARTITION FIELD old", "DROP PARTITION FIELD old"),
    "kind": ("ADD PARTITION FIELD truncate(2, kind) AS k", "DROP PARTITION FIELD k"),
}


def _with_columns(pipeline: Pipeline) -> Lake:
    pipeline.plan_options["drop_columns"] = True
    pipeline.capture_options["type_options"] = {"composite": "struct"}
    lake = begun(pipeline)
    lake.run(
        "CREATE TYPE pair AS (n int, m int)",
        "ALTER TABLE t ADD plain int, ADD hashed text, ADD cut text, ADD day date, ADD part pair,"
        " ADD sorted int, ADD old int, ADD kind int, ADD free int",
        "UPDATE t SET plain = id, hashed = id, cut = id, day = '2024-05-06', part = (id, id),"
        " sorted = id, old = id, kind = id, free = id",
    )
    return lake


def _alter(lake: Lake, change: str) -> None:
    pipeline = lake.pipeline
    pipeline.spark.sql(f"ALTER TABLE {CATALOG}.{pipeline.namespace}.t {change}")


@pytest.mark.slow
@pytest.mark.parametrize("format_version", [2, 3])
def test_a_column_of_an_earlier_partitioning_stays(
    pipeline: Pipeline, format_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Iceberg would drop it, and could then mark no row of the table as deleted any more."""
    pipeline.plan_options["format_version"] = format_version
    lake = _with_columns(pipeline)
    for before, _ in _ONCE.values():
        _alter(lake, before)
    lake.run("UPDATE t SET a = a + 1 WHERE id = 1")
    for _, after in _ONCE.values():
        _alter(lake, after)
    lake.run(
        "ALTER TABLE t DROP plain, DROP hashed, DROP cut, DROP day, DROP part, DROP sorted, DROP free",
        "ALTER TABLE t RENAME old TO renamed",
        "ALTER TABLE t DROP renamed",
        "UPDATE t SET a = a + 1 WHERE id < 3",
    )
    assert set(lake.fields()) == {
        "id",
        "a",
        "b",
        "plain",
        "hashed",
        "cut",
        "day",
        "part",
        "old",
        "kind",
    }
    assert "column plain of the target stays" in caplog.text
    assert "column free of the target stays" not in caplog.text
    lake.run("DELETE FROM t WHERE id = 2", "INSERT INTO t(id, a) VALUES (5, 5)")
    assert lake.agrees()
    lake.run(
        "ALTER TABLE t ALTER kind TYPE text",
        "UPDATE t SET kind = 'x' WHERE id = 1",
        copy_tables=("public.t",),
    )
    lake.run("UPDATE t SET kind = 'y'", "DELETE FROM t WHERE id = 5")
    assert lake.agrees()


def test_a_partitioning_whose_column_is_gone_is_named_and_mended(lake: Lake) -> None:
    """An earlier version of the package dropped it, or a user did who no longer needed it."""
    pipeline = lake.pipeline
    _alter(lake, "ADD PARTITION FIELD b")
    lake.run("UPDATE t SET a = a + 1 WHERE id < 3", "ALTER TABLE t DROP b")
    _alter(lake, "DROP PARTITION FIELD b")
    _alter(lake, "DROP COLUMN b")
    lake.execute(
        "INSERT INTO t(id, a) VALUES (4, 4)",
        "UPDATE t SET a = a + 1 WHERE id < 3",
        "DELETE FROM t WHERE id = 3",
    )
    batch = pipeline.stage()
    for _ in range(2):
        with pytest.raises(TableRefused, match="once partitioned by b") as refused:
            pipeline.apply(batch)
    assert refused.value.advice is not None
    _, _, advised = refused.value.advice.partition("ALTER TABLE <it> ")
    _alter(lake, advised.partition(". ")[0])
    pipeline.apply(batch)
    lake.run("UPDATE t SET a = a + 1 WHERE id = 1")
    assert lake.agrees()
    # And back, as docs/reference/tables.md says.
    table = f"table => '{pipeline.namespace}.t'"
    spark = pipeline.spark
    spark.catalog.refreshTable(f"{CATALOG}.{pipeline.namespace}.t")
    spark.sql(
        f"CALL {CATALOG}.system.rewrite_data_files({table}, options => map('rewrite-all', 'true'))"
    )
    for row in spark.sql(
        f"SELECT name FROM {CATALOG}.{pipeline.namespace}.t.refs WHERE type = 'TAG'"
    ).collect():
        _alter(lake, f"DROP TAG {row['name']}")
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots({table}, older_than => current_timestamp(),"
        " retain_last => 1, clean_expired_metadata => true)"
    )
    _alter(lake, advised.partition(". ")[0].replace("copy-on-write", "merge-on-read"))
    lake.run("UPDATE t SET a = a + 1 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    assert lake.agrees()
