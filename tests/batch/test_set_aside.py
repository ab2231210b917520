"""Which tables are set aside, by the rows of the checkpoint table."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.set_aside import Refusal, TableRow, set_aside_tables
from airflow_provider_pgoutput.errors import TableRefused

REFUSAL = Refusal("RowMissing", "A row is missing.", "copy the table again.")


def refused_in(target: str) -> Refusal:
    return Refusal("RowMissing", "A row is missing.", "copy the table again.", target)


def row(start: int, end: int, refusal: Refusal | None = None, oid: int = 7) -> TableRow:
    return TableRow(oid, "public.t", Lsn(start), Lsn(end), refusal)


def test_a_table_waits_from_the_first_batch_that_it_lacks() -> None:
    other = row(30, 60, oid=8)._replace(table_name="public.other")
    rows = [row(10, 20), row(30, 40, REFUSAL), row(50, 60, REFUSAL), other]
    found = set_aside_tables(rows)
    assert list(found) == [7]
    assert (found[7].since_lsn, found[7].batches, found[7].refusal) == (Lsn(30), 2, REFUSAL)


@pytest.mark.parametrize(
    ("rows", "since", "replayed"),
    [
        pytest.param([row(30, 40, REFUSAL)], 30, 60, id="since before the adoption"),
        pytest.param([row(30, 40, REFUSAL), row(60, 70, REFUSAL)], 30, 60, id="and after it"),
        pytest.param([row(50, 60), row(60, 70, REFUSAL)], 60, 60, id="in the adoption"),
        pytest.param([row(70, 80, REFUSAL)], 70, 70, id="since after the adoption"),
    ],
)
def test_no_batch_from_before_an_adoption_is_replayed(
    rows: list[TableRow], since: int, replayed: int
) -> None:
    (found,) = set_aside_tables(rows, adopted_at=Lsn(60)).values()
    assert (found.since_lsn, found.replay_lsn) == (Lsn(since), Lsn(replayed))


@pytest.mark.parametrize(
    ("applied", "waits"),
    [
        pytest.param((30, 40), True, id="a replay that was killed after the first batch"),
        pytest.param((50, 60), False, id="the last batch"),
        pytest.param((60, 60), False, id="a copy where the last batch ends"),
        pytest.param((70, 80), False, id="a later copy"),
    ],
)
def test_the_last_batch_that_it_lacks_brings_it_back(applied: tuple[int, int], waits: bool) -> None:
    rows = [row(30, 40, REFUSAL), row(50, 60, REFUSAL), row(*applied)]
    found = set_aside_tables(rows)
    assert bool(found) == waits
    if waits:
        assert found[7].since_lsn == Lsn(50)


def test_a_refused_copy_waits_although_an_earlier_batch_ends_there() -> None:
    assert set_aside_tables([row(30, 40), row(40, 40, REFUSAL)])
    assert not set_aside_tables([row(30, 40), row(40, 40, REFUSAL), row(40, 40)])


def test_the_reason_is_that_of_the_first_batch() -> None:
    later = Refusal("TableRefused", "It is a view.")
    found = set_aside_tables([row(50, 60, later), row(30, 40, REFUSAL)])
    assert str(found[7].refusal) == (
        "RowMissing: A row is missing. What to do: copy the table again."
    )


@pytest.mark.parametrize(
    ("oid", "target", "ends", "waits"),
    [
        pytest.param(8, "n.t", 70, False, id="a later copy of the new table"),
        pytest.param(8, "n.t", 60, False, id="a copy where the last batch ends that it lacks"),
        pytest.param(8, "n.t", 50, True, id="refused once more after the copy"),
        pytest.param(8, "n.t", 15, True, id="a table that had the target before it"),
        pytest.param(8, "n.t", 20, True, id="a table that had the target until it was copied"),
        pytest.param(8, "n.other", 70, True, id="another target"),
    ],
)
def test_another_table_in_its_target_ends_it(oid: int, target: str, ends: int, waits: bool) -> None:
    own = row(10, 20)._replace(target="n.t")
    new = row(ends, ends, oid=oid)._replace(target=target)
    lacked = [row(30, 40, refused_in("n.t")), row(50, 60, refused_in("n.t"))]
    for rows in ([own, *lacked, new], [new, *lacked, own]):
        assert list(set_aside_tables(rows)) == ([7] if waits else [])


@pytest.mark.parametrize("refusal", [refused_in("n.t_old"), REFUSAL], ids=["target", "unknown"])
def test_a_table_that_is_refused_in_its_new_target_waits(refusal: Refusal) -> None:
    """Another table may have its former target, and go on there."""
    own, new = row(10, 20)._replace(target="n.t"), row(20, 30, oid=8)._replace(target="n.t")
    later = row(30, 40, oid=8)._replace(target="n.t")
    for end in (30, 35):
        found = set_aside_tables([own, new, row(20, end, refusal), later])
        assert [each.since_lsn for each in found.values()] == [Lsn(20)]
        assert list(found) == [7]


def test_two_tables_that_swap_their_targets_both_wait_for_their_copies() -> None:
    rows = [row(10, 20)._replace(target="n.t"), row(10, 20, oid=8)._replace(target="n.u")]
    rows.append(row(20, 30, refused_in("n.u")))
    assert list(set_aside_tables([*rows, row(20, 30, oid=8)._replace(target="n.t")])) == [7]
    both = [*rows, row(20, 30, refused_in("n.t"), oid=8)]
    assert sorted(set_aside_tables(both)) == [7, 8]


def test_a_table_that_was_never_applied_has_no_target_to_lose() -> None:
    new = row(70, 70, oid=8)._replace(target="n.t")
    assert list(set_aside_tables([row(30, 40, refused_in("n.t")), new])) == [7]


UNSTAGED = Refusal("ValueRefused", "A value.", "copy the table.", unstaged_since="0/23")


def test_what_was_not_staged_waits_for_a_later_batch_which_copies_the_table() -> None:
    """The batch that sets the table aside may itself be applied to it, as far as it goes."""
    lacked = [row(10, 20), row(30, 40), row(30, 40, UNSTAGED)]
    (found,) = set_aside_tables(lacked).values()
    assert (found.since_lsn, found.refusal, found.needs_copy) == (Lsn(0x23), UNSTAGED, True)
    for copy in (row(40, 40), row(40, 50)):
        assert not set_aside_tables([*lacked, copy])
        # The copy is refused by apply: a replay brings it, when the cause is gone.
        refused = [*lacked, copy._replace(refusal=REFUSAL), row(50, 60, REFUSAL)]
        (found,) = set_aside_tables(refused).values()
        assert (found.since_lsn, found.refusal, found.needs_copy) == (Lsn(0x23), UNSTAGED, False)
        assert not set_aside_tables([*refused, row(50, 60)])
        (found,) = set_aside_tables([*refused, row(60, 70, UNSTAGED)]).values()
        assert found.needs_copy


def test_a_refused_copy_does_not_hide_that_changes_before_it_are_in_no_batch() -> None:
    """A replay begins with the copy. A change log would keep its gap."""
    lacked = [row(10, 20), row(20, 30, REFUSAL), row(30, 40), row(30, 40, UNSTAGED)]
    (found,) = set_aside_tables(lacked).values()
    assert (found.needs_copy, found.lacks_unstaged) == (True, True)
    (found,) = set_aside_tables([*lacked, row(40, 60, REFUSAL), row(60, 70, REFUSAL)]).values()
    assert (found.needs_copy, found.lacks_unstaged) == (False, True)
    # The batch with the copy is enough, and prune keeps it.
    assert found.replay_lsn == Lsn(40)
    assert found.since_lsn < Lsn(40)
    (found,) = set_aside_tables([*lacked[:2], row(50, 60, REFUSAL)]).values()
    assert (found.lacks_unstaged, found.replay_lsn, found.since_lsn) == (False, Lsn(20), Lsn(20))


@pytest.mark.parametrize(
    ("target", "ends", "waits"),
    [
        pytest.param("n.t", 50, False, id="a later copy of the new table"),
        pytest.param("n.t", 40, False, id="a copy where the last batch ends that it lacks"),
        pytest.param("n.t", 20, True, id="a table that had the target before it"),
        pytest.param("n.other", 50, True, id="another target"),
    ],
)
def test_another_table_in_its_target_ends_what_was_not_staged(
    target: str, ends: int, waits: bool
) -> None:
    """The stage task knows no target."""
    own, new = (
        row(10, 20)._replace(target="n.t"),
        row(ends, ends, oid=8)._replace(target=target),
    )
    rows = [own, row(30, 40, UNSTAGED), new]
    assert list(set_aside_tables(rows)) == ([7] if waits else [])


def test_a_first_copy_that_was_not_staged_waits_for_another_one() -> None:
    assert set_aside_tables([row(20, 20, UNSTAGED)])
    assert not set_aside_tables([row(20, 20, UNSTAGED), row(20, 30)])


def test_a_table_may_have_the_first_part_of_a_batch_that_was_read_again() -> None:
    (found,) = set_aside_tables([row(10, 20), row(20, 30), row(15, 40, REFUSAL)]).values()
    assert found.since_lsn == Lsn(30)


def test_a_refusal_as_text() -> None:
    for each in (REFUSAL, refused_in("n.t"), UNSTAGED):
        assert Refusal.from_text(each.to_text()) == each
    assert Refusal.from_text('["a", "b", "c"]') == Refusal("a", "b", "c")
    for text in ("{}", "[]", '["a", "b", 3]', "nothing"):
        with pytest.raises(TableRefused, match="set_aside"):
            Refusal.from_text(text)


def test_another_table_with_the_name_ends_nothing() -> None:
    """``t`` was renamed, and another table got its name and is applied."""
    rows = [row(10, 20), row(30, 40, REFUSAL), row(40, 50, oid=8)]
    assert list(set_aside_tables(rows)) == [7]


def test_a_table_that_shares_its_target_does_not_replace_another() -> None:
    ours, theirs = [
        row(0, 10, oid=oid)._replace(table_name=f"tenant_{name}.t", target="shop.t")
        for oid, name in ((7, "a"), (8, "b"))
    ]
    refused = row(10, 20, refused_in("shop.t"))._replace(table_name="tenant_a.t")
    later = theirs._replace(start_lsn=Lsn(10), end_lsn=Lsn(20))
    assert list(set_aside_tables([ours, theirs, refused, later])) == [7]
    # It was made again at the source, and copied.
    again = later._replace(relation_oid=9, table_name="tenant_a.t")
    assert list(set_aside_tables([ours, theirs, refused, later, again])) == []
