"""ALTER TABLE while a pipeline writes a change log, from a real server to an Iceberg table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG
from tests.conformance.one_table import begun

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline


@pytest.mark.parametrize("one_by_one", [False, True], ids=["one batch", "a batch per statement"])
def test_a_change_log_goes_on_through_changes_of_the_schema(
    pipeline: Pipeline, one_by_one: bool
) -> None:
    """A rename, a promotion, a type without a way in Iceberg, another key, a drop: what is logged stays."""
    pipeline.plan_options.update(mode=CHANGE_LOG, keep_retyped_columns=True)
    lake = begun(pipeline)
    fields = lake.fields()
    statements = (
        "UPDATE t SET a = 11 WHERE id = 1",
        "ALTER TABLE t RENAME a TO x",
        "UPDATE t SET x = 12 WHERE id = 1",
        "ALTER TABLE t ALTER x TYPE bigint",
        "UPDATE t SET x = 5000000000 WHERE id = 2",
        "ALTER TABLE t ALTER b TYPE text",
        "UPDATE t SET b = 'two' WHERE id = 2",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (x)",
        "UPDATE t SET x = 13 WHERE id = 1",
        "ALTER TABLE t DROP b",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (4, 40)",
    )
    said = []
    if one_by_one:
        for statement in statements:
            said += lake.said(lake.run(statement))
    else:
        said = lake.said(lake.run(*statements))
    assert (lake.fields()["x"], lake.fields()["b__old_3"]) == (fields["a"], fields["b"])
    columns = ("_pgoutput_commit_lsn", "_pgoutput_seq", "_pgoutput_op", "id", "x", "b__old_3", "b")
    rows = [row[2:] for row in sorted(lake.rows(*columns), key=lambda row: row[:2])]
    # The copied rows are numbered backwards.
    assert sorted(rows[:3]) == [
        *(("C", 1, 10, 100, None), ("C", 2, 20, 200, None), ("C", 3, 30, 300, None)),
    ]
    assert rows[3:] == [
        ("U", 1, 11, 100, None),
        ("U", 1, 12, 100, None),
        ("U", 2, 5_000_000_000, 200, None),
        ("U", 2, 5_000_000_000, None, "two"),
        ("U", 1, 13, None, "100"),
        ("D", None, 30, None, None),
        ("I", 4, 40, None, None),
    ]
    assert said == [
        "column a was renamed to x",
        "column x changed from integer to bigint",
        "column b changed from integer to text",
        "the key changed from (id) to (x)",
        "column b was dropped",
    ]
