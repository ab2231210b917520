"""Masked columns from PostgreSQL to the lake: no file has a plain value, and rows are found by hashes.

What is not here: staging, which has more ways in (``tests/capture/test_masks.py``).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_MASKS
from airflow_provider_pgoutput.errors import TableRefused
from airflow_provider_pgoutput.proof.verify import verify
from tests.capture.test_masks import CANARY, SECRET, hashed, plain_places
from tests.conformance.one_table import Lake
from tests.conformance.pipeline import CATALOG
from tests.proof.worlds import World

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

_MASKS = {
    "public.t.email": "hash",
    "public.t.phone": "truncate(2)",
    "public.t.name": "redact",
    "public.t.age": "null",
    "public.t.nick": "drop",
}


def _row(number: int) -> str:
    person = f"'{CANARY}-{number}', '+4{CANARY}', '{CANARY} name', 918273645, '{CANARY} nick'"
    return f"({person}, '{CANARY}', {number})"


def _lake_folder(lake: Lake) -> Path:
    return Path(unquote(urlparse(lake.table().location()).path))


def test_masked_columns(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    lake = Lake(pipeline)
    lake.execute(
        "CREATE TABLE t(email text PRIMARY KEY, phone text, name text, age int, nick text, plain text,"
        " n int)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t VALUES {', '.join(map(_row, range(1, 5)))}",
        "UPDATE t SET plain = 'p'",
    )
    pipeline.capture_options.update(columns=_MASKS, mask_secret=SECRET)
    lake.run()
    lake.run(
        f"INSERT INTO t SELECT '{CANARY}-5', NULL, NULL, NULL, NULL, 'p', 5",
        f"UPDATE t SET n = 20 WHERE email = '{CANARY}-2'",
        f"UPDATE t SET email = '{CANARY}-30' WHERE email = '{CANARY}-3'",
        f"DELETE FROM t WHERE email = '{CANARY}-4'",
    )
    masked = ("+4", "***", None)
    wanted = {
        (hashed(f"{CANARY}-1"), *masked, "p", 1),
        (hashed(f"{CANARY}-2"), *masked, "p", 20),
        (hashed(f"{CANARY}-30"), *masked, "p", 3),
        (hashed(f"{CANARY}-5"), None, None, None, "p", 5),
    }
    assert set(lake.rows()) == wanted
    assert lake.table().schema().column_names == ["email", "phone", "name", "age", "plain", "n"]
    assert "email" in lake.table().properties[PROPERTY_MASKS]
    assert plain_places(_lake_folder(lake)) == []
    assert plain_places(pipeline.staging) == []

    # Hashes need their secret, and the report names what is not compared.
    world = World(pipeline, ("p",))
    for secret, left_out in (
        (None, "email, age, nick"),
        (b"another secret, as long as that", "email, age, nick"),
        (SECRET, "age, nick"),
    ):
        (proof,) = verify(world.request(mask_secret=secret), world.run).tables
        assert proof.is_equal, str(proof)
        assert str(proof).endswith(f"4 rows, without {left_out}")
    assert caplog.text.count("mask_conn_id has another secret than the lake's rows") == 1
    # Damage to a masked value is found, and a report has no plain value, not of the key either.
    of_row = {"email": hashed(f"{CANARY}-2"), "phone": "+4", "name": "***"}
    for column, value in of_row.items():
        update = f"UPDATE {CATALOG}.{pipeline.namespace}.t SET {column} = '{{}}' WHERE n = 20"
        pipeline.spark.sql(update.format("+5"))
        request = world.request(mask_secret=SECRET, on_difference="succeed", keys_shown=9)
        (proof,) = verify(request, world.run).tables
        assert proof.is_different, column
        assert proof.differences is not None
        assert proof.differences.keys == ()
        assert CANARY not in str(proof)
        pipeline.spark.sql(update.format(value))

    _refuses_another_secret(lake)


def _refuses_another_secret(lake: Lake) -> None:
    """The lake itself notices it, also if the checkpoint does not know the masks."""
    pipeline = lake.pipeline
    found = pipeline.checkpoint()
    assert found is not None
    assert any(shape.masks for shape in found.shapes.values())
    lake.execute(f"UPDATE t SET n = 22 WHERE email = '{CANARY}-2'")
    other = b"another secret of these tests, long"
    forgotten = dataclasses.replace(
        found,
        shapes={
            oid: dataclasses.replace(
                each,
                masks=tuple(dataclasses.replace(m, mask=_with(m.mask, other)) for m in each.masks),
            )
            for oid, each in found.shapes.items()
        },
    )
    batch = pipeline.stage(mask_secret=other, checkpoint=forgotten)
    before = pipeline.snapshot_ids()
    with pytest.raises(TableRefused, match="secret of the hash is another") as refused:
        pipeline.apply(batch)
    assert "copy_tables=['public.t']" in str(refused.value)
    assert pipeline.snapshot_ids() == before
    lake.run(mask_secret=other, copy_tables=("public.t",))
    assert hashed(f"{CANARY}-2") not in {row[0] for row in lake.rows()}
    lake.run(f"DELETE FROM t WHERE email = '{CANARY}-2'", mask_secret=other)
    assert len(lake.rows()) == 3
    # Without masks, the copy brings the plain values, and the property says so.
    lake.run(columns={}, copy_tables=("public.t",))
    assert lake.agrees("email", "age", "nick")
    assert lake.table().properties[PROPERTY_MASKS] == "[]"


class _Killed(BaseException):
    """Ends an apply as a kill would."""


def test_deleted_rows_keep_no_value_of_another_mask(pipeline: Pipeline) -> None:
    """Soft delete keeps rows that no copy brings again, so nobody can mask them as the others."""
    lake = Lake(pipeline)
    pipeline.plan_options["soft_delete"] = True
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, email text, n int)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t SELECT i, '{CANARY}-' || i, i FROM generate_series(1, 3) i",
    )
    lake.run()
    lake.run("DELETE FROM t WHERE id = 3")
    shown = ("id", "email", "n", "_pgoutput_op")
    assert (3, f"{CANARY}-3", 3, "D") in lake.rows(*shown)
    plain = lake.table().properties.get(PROPERTY_MASKS)
    pipeline.capture_options.update(columns={"public.t.email": "hash"}, mask_secret=SECRET)
    batch = pipeline.stage(copy_tables=("public.t",))

    def kill(point: str) -> None:
        if point == "apply.before_publish":
            raise _Killed

    with pytest.raises(_Killed), crash_points.watched(kill):
        pipeline.apply(batch)
    # The property speaks of the rows that readers see.
    assert lake.table().properties.get(PROPERTY_MASKS) == plain
    pipeline.apply(batch)
    masked = [(i, hashed(f"{CANARY}-{i}"), i, "C") for i in (1, 2)]
    assert lake.rows(*shown) == [*masked, (3, None, 3, "D")]
    assert "email" in lake.table().properties[PROPERTY_MASKS]
    # Under the same mask they keep their values.
    lake.run("DELETE FROM t WHERE id = 2")
    lake.run(copy_tables=("public.t",))
    assert lake.rows(*shown)[1] == (2, hashed(f"{CANARY}-2"), 2, "D")

    # A replay from before the copy would bring the plain values back. It moves nothing.
    rows, before = lake.rows(*shown), pipeline.snapshot_ids()
    for first in (0, 1):
        with pytest.raises(TableRefused, match="with the masks of now"):
            replay(pipeline.spark, pipeline.replay_job(first))
        assert pipeline.snapshot_ids() == before
    # The snapshot from before this copy has the plain value of a deleted row.
    replay(pipeline.spark, pipeline.replay_job(2))
    assert lake.rows(*shown) == rows


@pytest.mark.parametrize("soft_delete", [False, True])
def test_old_values_of_a_retyped_column_do_not_outlive_its_mask(
    pipeline: Pipeline, soft_delete: bool
) -> None:
    """They stand in a field of their own, which a copy gives back to the rows by their key."""
    lake = Lake(pipeline)
    pipeline.plan_options.update(soft_delete=soft_delete, keep_retyped_columns=True)
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, ssn int, other int)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t SELECT i, 918270 + i, 70 + i FROM generate_series(1, 3) i",
    )
    lake.run()
    lake.run(
        "ALTER TABLE t ALTER ssn TYPE text, ALTER other TYPE text",
        "INSERT INTO t VALUES (4, 'new', 'new')",
        "DELETE FROM t WHERE id = 3",
    )
    shown = ("id", "ssn__old_2", "other__old_3")
    deleted: list[tuple[object, ...]] = [(3, 918273, 73)] if soft_delete else []
    assert lake.rows(*shown) == [(1, 918271, 71), (2, 918272, 72), *deleted, (4, None, None)]
    pipeline.capture_options.update(columns={"public.t.ssn": "hash"}, mask_secret=SECRET)
    lake.run(copy_tables=("public.t",))
    deleted = [(3, None, 73)] if soft_delete else []
    assert lake.rows(*shown) == [(1, None, 71), (2, None, 72), *deleted, (4, None, None)]
    assert (1, hashed("918271")) in lake.rows("id", "ssn")


def test_a_kill_does_not_hide_which_columns_of_a_table_made_again_have_other_masks(
    pipeline: Pipeline,
) -> None:
    """The new table has the masked columns in another order, so under each other's numbers."""
    lake = Lake(pipeline)
    pipeline.plan_options["soft_delete"] = True
    masks = {"public.t.email": "hash"}
    pipeline.capture_options.update(columns=masks, mask_secret=SECRET)
    values = f"SELECT i, '{CANARY}-s' || i, '{CANARY}-' || i FROM generate_series(1, 3) i"
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, ssn text, email text)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t {values}",
    )
    lake.run()
    lake.run("DELETE FROM t WHERE id = 3")
    lake.execute(
        "DROP TABLE t",
        "CREATE TABLE t(id int PRIMARY KEY, email text, ssn text)",
        "ALTER PUBLICATION p ADD TABLE t",
        f"INSERT INTO t (id, ssn, email) {values} LIMIT 2",
    )
    masks["public.t.ssn"] = "hash"
    batch = pipeline.stage(copy_tables=("public.t",))
    for point in ("apply.after_columns", "apply.before_publish"):

        def kill(at: str, point: str = point) -> None:
            if at == point:
                raise _Killed

        with pytest.raises(_Killed), crash_points.watched(kill):
            pipeline.apply(batch)
    pipeline.apply(batch)
    masked = [(i, hashed(f"{CANARY}-s{i}"), hashed(f"{CANARY}-{i}"), "C") for i in (1, 2)]
    deleted = (3, None, hashed(f"{CANARY}-3"), "D")
    assert lake.rows("id", "ssn", "email", "_pgoutput_op") == [*masked, deleted]


def test_no_row_is_marked_as_deleted_because_the_secret_is_another(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    pipeline.plan_options["soft_delete"] = True
    lake.execute(
        "CREATE TABLE t(email text PRIMARY KEY, n int)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t SELECT '{CANARY}-' || i, i FROM generate_series(1, 3) i",
    )
    pipeline.capture_options.update(columns={"public.t.email": "hash"}, mask_secret=SECRET)
    lake.run()
    lake.run(f"DELETE FROM t WHERE email = '{CANARY}-3'")
    assert [row[1:] for row in sorted(lake.rows("email", "n", "_pgoutput_op"), key=_number)] == [
        (1, "C"),
        (2, "C"),
        (3, "D"),
    ]
    lake.run(mask_secret=b"another secret of these tests, long", copy_tables=("public.t",))
    assert [row[1:] for row in sorted(lake.rows("email", "n", "_pgoutput_op"), key=_number)] == [
        (1, "C"),
        (2, "C"),
    ]


def _number(row: tuple[object, ...]) -> int:
    assert isinstance(row[1], int)
    return row[1]


def _with(mask: str, secret: bytes) -> str:
    from airflow_provider_pgoutput.masks import fingerprint

    return f"hash {fingerprint(secret)}" if mask.startswith("hash") else mask
