"""Filters of tables that somebody alters: a sealed batch still goes on, and the table is set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, SlotAheadOfCheckpoint
from tests.capture.filters.test_of_tables import CONDITION, FILTERS, copied, make_orders, staged
from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.capture.test_staging_set_aside import Lake

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

RENAME = "ALTER TABLE orders RENAME region TO area"
RENAMED = {"public.orders": CONDITION.replace("region", "area")}
DROP = "ALTER TABLE orders DROP region"
WITHOUT = {"public.orders": "amount >= 10 OR active"}


def begun(source: Source) -> Manifest:
    make_orders(source)
    source.execute(
        "DROP PUBLICATION own",
        "INSERT INTO orders VALUES (1, 'eu', 20, false), (2, 'us', 20, false)",
    )
    return source.stage(filters=FILTERS)


@pytest.mark.parametrize(("change", "filters"), [(RENAME, RENAMED), (DROP, WITHOUT)])
def test_a_sealed_batch_is_found_when_its_filter_has_other_names(
    source: Source, change: str, filters: dict[str, str]
) -> None:
    """The lake has nothing yet, so nobody can ask for a copy. And the old name is refused."""
    sealed = begun(source)
    source.execute(change)
    with pytest.raises(ConfigurationError, match="no such column is published"):
        source.stage(filters=FILTERS)
    assert source.stage(filters=filters).batch_id == sealed.batch_id
    if change == RENAME:
        for another in ({}, {"public.orders": "area = 'us'"}):
            with pytest.raises(ConfigurationError, match="sealed the next batch"):
                source.stage(filters=another)


def test_a_batch_that_the_slot_has_passed_is_found(source: Source) -> None:
    """With ``after_stage`` only the staging area still has its changes."""
    first = begun(source)
    run: dict[str, Any] = {"advance": "after_stage", "checkpoint": checkpoint_with_shapes(first)}
    source.execute("INSERT INTO orders VALUES (3, 'eu', 20, false), (4, 'us', 20, false)")
    second = source.stage(filters=FILTERS, **run)
    assert source.confirmed() == str(second.end_lsn)
    source.execute(RENAME)
    with pytest.raises(SlotAheadOfCheckpoint, match="run once without copy_tables"):
        source.stage(filters=RENAMED, copy_tables=("public.orders",), **run)
    again = source.stage(filters=RENAMED, **run)
    assert again.batch_id == second.batch_id
    assert [row["id"] for row in staged(source, again)] == [3]
    run["checkpoint"] = checkpoint_with_shapes(second)
    with pytest.raises(ConfigurationError, match="a column of it was renamed"):
        source.stage(filters=RENAMED, **run)
    third = source.stage(filters=RENAMED, copy_tables=("public.orders",), **run)
    assert [row["id"] for row in copied(source, third)] == [1, 3]


@pytest.mark.parametrize(
    ("change", "filters", "words"),
    [
        (RENAME, RENAMED, "no such column is published"),
        (DROP, WITHOUT, "no such column is published"),
        (
            "ALTER TABLE orders ALTER amount TYPE int USING amount / 10",
            FILTERS,
            "got another type",
        ),
        (
            "ALTER TABLE orders ALTER region TYPE bytea USING region::bytea",
            WITHOUT,
            "this type are not compared",
        ),
        ("ALTER TABLE orders REPLICA IDENTITY DEFAULT", None, "not in the replica identity"),
    ],
)
def test_a_table_that_is_altered_stops_no_other(
    source: Source, change: str, filters: dict[str, str] | None, words: str
) -> None:
    """Nothing of it is staged until somebody copies it. The new name of the column alone does not help."""
    first = begun(source)
    run: dict[str, Any] = {"on_table_refused": "set_aside"}
    source.execute(
        "INSERT INTO orders VALUES (3, 'us', 1, false), (4, 'eu', 20, false)",
        change,
        "INSERT INTO t VALUES (7)",
        "UPDATE orders SET id = id + 10",
    )
    lake = Lake()
    lake.take(first)
    with pytest.raises(ConfigurationError, match=words):
        source.stage(filters=FILTERS, checkpoint=lake.checkpoint)
    second = source.stage(filters=FILTERS, checkpoint=lake.checkpoint, **run)
    assert [each.name for each in second.changed_tables] == ["public.t"]
    (aside,) = second.passed_over
    assert (aside.table_name, aside.since_lsn) == ("public.orders", str(first.end_lsn))
    assert words in aside.reason
    lake.take(second)
    assert lake.aside == {"orders": "ConfigurationError"}
    if filters is None:
        return
    if change == RENAME:
        # The new name alone does not bring it back: what changed meanwhile is staged nowhere.
        lake.take(source.stage(filters=filters, checkpoint=lake.checkpoint, **run))
        assert lake.aside == {"orders": "ConfigurationError"}
    copy = source.stage(
        filters=filters, checkpoint=lake.checkpoint, copy_tables=("public.orders",), **run
    )
    wanted = source.execute(f"SELECT id FROM orders WHERE {filters['public.orders']} ORDER BY id")
    assert [(row["id"],) for row in copied(source, copy)] == wanted
    lake.take(copy)
    assert lake.aside == {}


def test_a_copy_that_was_asked_for_has_no_row_past_the_filter(source: Source) -> None:
    """The name in ``filters`` is still the old one."""
    first = begun(source)
    source.execute(RENAME)
    second = source.stage(
        filters=FILTERS,
        checkpoint=checkpoint_with_shapes(first),
        copy_tables=("public.orders",),
        on_table_refused="set_aside",
    )
    assert not second.changed_tables
    assert [each.table_name for each in second.passed_over] == ["public.orders"]
    assert [each.table_name for each in second.refused_copies] == ["public.orders"]


@pytest.mark.parametrize(
    "filters", [{"public.orders": "nothing = 1"}, {"public.orders": "amount = '1'"}, {}]
)
def test_a_filter_that_never_fitted_ends_the_run(source: Source, filters: dict[str, str]) -> None:
    """A typing mistake must not cost a copy."""
    first = begun(source)
    with pytest.raises(ConfigurationError):
        source.stage(
            filters=filters,
            checkpoint=checkpoint_with_shapes(first),
            on_table_refused="set_aside",
        )
