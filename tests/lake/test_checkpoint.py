"""What the rows of the checkpoint table say of a slot; how they are written, the tests of the lake show."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem, to_text
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.passed_over import PassedOver
from airflow_provider_pgoutput.batch.passed_over import to_text as passed_over_text
from airflow_provider_pgoutput.batch.shape import KnownColumn, Shape
from airflow_provider_pgoutput.errors import TableRefused
from airflow_provider_pgoutput.lake.checkpoint import checkpoint_of

_INT = Shape((KnownColumn(1, "a", "integer", "int"),), (), "d")


def row(start: int, end: int, table: str | None = None, **more: object) -> dict[str, object]:
    return {
        "system_identifier": "1",
        "batch_id": f"batch {end}",
        "table_name": table,
        "relation_oid": None if table is None else 16384,
        "start_lsn": Lsn(start).sortable,
        "end_lsn": Lsn(end).sortable,
        "columns": None,
        "copied": None,
        "schema_changes": None,
        "skipped": None,
        "adopted_from": None,
        "passed_over": None,
        "target": None,
        **more,
    }


ROWS = [
    row(100, 200, skipped='{"0/96": 3}'),
    row(100, 200, "public.t", copied=7, columns=_INT.to_json()),
    row(200, 300, skipped='{"0/FA": 1, "0/FB": 0}'),
    row(200, 300, "public.t", copied=0, columns=_INT.to_json()),
    row(300, 400),
]


def test_what_a_run_that_reads_again_has_to_know() -> None:
    found = checkpoint_of(pa.Table.from_pylist(ROWS[::-1]), "lake", "slot")
    assert found is not None
    assert (found.end_lsn, found.batch_id, found.begun_at) == (Lsn(400), "batch 400", Lsn(100))
    assert found.copied_until == Lsn(200)
    assert sorted(found.skipped) == ['{"0/96": 3}', '{"0/FA": 1, "0/FB": 0}']
    # The second batch has the same columns.
    assert found.shaped_at == {16384: Lsn(200)}


def test_columns_that_change_are_of_the_batch_that_changed_them() -> None:
    changed = Shape((KnownColumn(1, "a", "bigint", "long"),), (), "d")
    rows = [*ROWS, row(400, 500), row(400, 500, "public.t", columns=changed.to_json())]
    found = checkpoint_of(pa.Table.from_pylist(rows), "lake", "slot")
    assert found is not None
    assert found.shaped_at == {16384: Lsn(500)}
    assert found.shapes == {16384: changed}


def test_a_number_that_was_not_recorded_before_is_no_change() -> None:
    known = dataclasses.replace(_INT, highest_number=3)
    rows = [*ROWS, row(400, 500), row(400, 500, "public.t", columns=known.to_json())]
    found = checkpoint_of(pa.Table.from_pylist(rows), "lake", "slot")
    assert found is not None
    assert (found.shapes, found.shaped_at) == ({16384: known}, {16384: Lsn(200)})


def test_a_change_that_was_undone_in_its_batch_counts() -> None:
    undone = row(300, 400, "public.t", schema_changes='["there and back"]')
    found = checkpoint_of(pa.Table.from_pylist([*ROWS, undone]), "lake", "slot")
    assert found is not None
    assert found.shaped_at == {16384: Lsn(400)}


def test_a_table_of_an_earlier_version_lacks_columns() -> None:
    rows = pa.Table.from_pylist(ROWS).drop_columns(["start_lsn", "columns", "copied", "skipped"])
    found = checkpoint_of(rows, "lake", "slot")
    assert found is not None
    assert (found.end_lsn, found.begun_at, found.copied_until) == (Lsn(400), None, None)
    assert (found.skipped, found.shapes, found.shaped_at) == ((), {}, {})


def test_what_an_earlier_system_wrote_after_the_adoption_of_another_one_does_not_count() -> None:
    """An apply of it was still running. Its row may lie below the checkpoint or past it."""
    adopted_from = to_text([EarlierSystem("1", str(Lsn(400)))])
    new = {"system_identifier": "2", "adopted_from": adopted_from}
    rows = [*ROWS, row(400, 600, **new), row(600, 700, **new)]
    late = [row(400, end, table) for end in (500, 900) for table in (None, "public.t")]
    found = checkpoint_of(pa.Table.from_pylist([*rows, *late]), "lake", "slot")
    assert found == checkpoint_of(pa.Table.from_pylist(rows), "lake", "slot")
    assert found is not None
    assert (found.system_identifier, found.end_lsn) == ("2", Lsn(700))
    assert found.systems.earlier == (EarlierSystem("1", str(Lsn(400))),)


@pytest.mark.parametrize(
    ("names", "passed_over"),
    [
        ((), {16384: "0/172"}),
        (("public.t",), {16384: "0/172"}),
        (("public.u",), {}),
        # It was renamed after the adoption.
        (("public.t", "public.u"), {16384: "0/172"}),
    ],
)
def test_a_table_is_not_passed_over_for_one_that_had_its_oid_on_an_earlier_system(
    names: tuple[str, ...], passed_over: dict[int, str]
) -> None:
    new = {"system_identifier": "2", "adopted_from": to_text([EarlierSystem("1", str(Lsn(400)))])}
    entry = passed_over_text([PassedOver(16384, "public.t", "0/172")])
    rows = [*ROWS[:-1], row(300, 400, passed_over=entry), row(400, 600, **new)]
    rows += [row(600, 700 + i, name, **new) for i, name in enumerate(names)]
    found = checkpoint_of(pa.Table.from_pylist(rows), "lake", "slot")
    assert found is not None
    assert found.passed_over == passed_over


def test_the_target_of_a_table_is_that_of_its_newest_batch() -> None:
    """Not that of a late row of an earlier system, in which the OID was that of another table."""
    adopted_from = to_text([EarlierSystem("1", str(Lsn(400)))])
    new = {"system_identifier": "2", "adopted_from": adopted_from}
    rows = [
        *ROWS,
        row(300, 400, "public.t", target="lake.t"),
        row(400, 600, **new),
        row(400, 600, "public.u", target="lake.u", **new),
        row(600, 700, "public.u", target=None, **new),
        row(400, 900, "public.t", target="lake.t"),
    ]
    found = checkpoint_of(pa.Table.from_pylist(rows[::-1]), "lake", "slot")
    assert found is not None
    assert found.targets == {16384: "lake.u"}
    assert found.by_name_only({16384}).targets == {-16384: "lake.u"}


def test_of_several_tables_with_a_name_the_one_with_the_newest_batch_counts() -> None:
    """It had one OID, then another one. The third system gives it the first one again."""
    rows = [
        *ROWS,
        row(300, 400, "public.t", relation_oid=1),
        row(400, 500, "public.t", relation_oid=2),
        row(500, 600, "public.t", relation_oid=1),
        row(500, 600),
    ]
    for count, newest in ((2, 2), (4, 1)):
        found = checkpoint_of(pa.Table.from_pylist(rows[: len(ROWS) + count]), "lake", "slot")
        assert found is not None
        assert found.newest_oids["public.t"] == newest
        # The table has a third OID on the next system, or one of those that it had.
        of_earlier = found.by_name_only({1, 2})
        assert of_earlier.oid_of(3, "public.t") == -newest
        assert of_earlier.oid_of(newest, "public.t") == newest, "it has other numbers of columns"
        assert of_earlier.oid_of(3 - newest, "public.t") == -newest
        # On the same system it was made again, so it is another table.
        assert found.oid_of(3, "public.t") == 3
        assert found.by_name_only({3 - newest}).oid_of(3, "public.t") == 3
        assert found.by_name_only({3 - newest}).oid_of(newest, "public.t") == newest


def test_rows_of_a_system_that_was_never_left_are_refused() -> None:
    new = {"system_identifier": "2", "adopted_from": to_text([EarlierSystem("1", str(Lsn(400)))])}
    rows = [*ROWS, row(400, 600, **new), row(600, 650, system_identifier="3")]
    with pytest.raises(TableRefused, match="several source systems"):
        checkpoint_of(pa.Table.from_pylist(rows), "lake", "slot")
