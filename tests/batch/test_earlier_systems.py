"""The systems and timelines from which a lake was filled before the present ones."""

from __future__ import annotations

import json

import pytest

from airflow_provider_pgoutput.batch.checkpoint import (
    PROPERTY_COLUMNS,
    PROPERTY_RELATION_OID,
    PROPERTY_SLOT,
    recorded_columns,
    renumbered,
)
from airflow_provider_pgoutput.batch.earlier_systems import (
    EarlierSystem,
    EarlierTable,
    EarlierTimeline,
    Systems,
    end_before,
    from_text,
    to_text,
)
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.errors import TableRefused

TIMELINES = (EarlierTimeline(1, "0/20"), EarlierTimeline(2, "0/40"))
EARLIER = (EarlierSystem("7", "0/10"), EarlierSystem("8", "1/0"))


@pytest.mark.parametrize(
    ("system", "end", "is_part"),
    [
        ("9", "0/1", True),
        ("9", "2/0", True),
        ("8", "1/0", True),
        ("8", "1/1", False),
        ("7", "0/10", True),
        ("7", "0/11", False),
        ("6", "0/1", False),
        (None, "0/1", False),
    ],
)
def test_an_earlier_system_counts_up_to_its_end(
    system: str | None, end: str, is_part: bool
) -> None:
    assert Systems("9", EARLIER).have(system, Lsn.parse(end)) is is_part


def test_each_system_has_its_own_offset() -> None:
    systems = Systems("9", (EarlierSystem("7", "0/10"), EarlierSystem("8", "1/0", "2/0")))
    assert systems.lsn_offset == LsnOffset(2 << 32)
    assert systems.at(Lsn.parse("1/0")).lsn_offset == Systems("9").lsn_offset == NO_OFFSET


def test_the_newest_adoption_is_the_one_that_counts() -> None:
    assert Systems("9", EARLIER).adopted_at == Lsn.parse("1/0")
    assert Systems("9").adopted_at is None


@pytest.mark.parametrize(
    ("lsn", "system", "earlier"),
    [("0/1", "7", 0), ("0/10", "7", 0), ("0/11", "8", 1), ("1/0", "8", 1), ("1/1", "9", 2)],
)
def test_at_the_lsn_of_an_adoption_the_earlier_system_is_still_the_source(
    lsn: str, system: str, earlier: int
) -> None:
    assert Systems("9", EARLIER).at(Lsn.parse(lsn)) == Systems(system, EARLIER[:earlier])


def test_the_text_of_the_checkpoint_table_is_read_again() -> None:
    assert from_text(to_text(EARLIER)) == EARLIER
    assert to_text(()) is None
    assert from_text(None) == ()


@pytest.mark.parametrize(
    "text",
    ["x", "7", '[{"system_identifier": "7"}]', '[{"system_identifier": "7", "end_lsn": "x"}]'],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(TableRefused, match="adopted_from"):
        from_text(text)


@pytest.mark.parametrize(
    ("timeline", "end", "lost_since"),
    [
        pytest.param(1, 0x20, None, id="ends where the timeline does"),
        pytest.param(1, 0x21, Lsn(0x20), id="ends past the timeline"),
        pytest.param(2, 0x30, None, id="of the timeline between"),
        pytest.param(2, 0x50, Lsn(0x40), id="past the timeline between"),
        pytest.param(3, 0x50, None, id="of the present timeline"),
        pytest.param(None, 0x50, None, id="not known"),
    ],
)
def test_a_batch_past_the_end_of_its_timeline_is_lost_in_part(
    timeline: int | None, end: int, lost_since: Lsn | None
) -> None:
    assert end_before(TIMELINES, timeline, Lsn(end)) == lost_since


def test_a_table_of_another_system_is_known_by_new_numbers() -> None:
    """Column 2 was dropped before the dump, so column 3 is the second one of the new system."""
    columns = {
        "relation_oid": 16384,
        "fields": {"1": 1, "3": 3, "4": 9, "5": 12, "-2": 10},
        "retired": {"3": [4, 5], "4": [6]},
        "unsent": [-2, 5],
        "former": [8],
        "begun": ["0/10", {"3": 1}],
    }
    properties = {
        PROPERTY_RELATION_OID: "16384",
        PROPERTY_COLUMNS: json.dumps(columns),
        PROPERTY_SLOT: "s",
    }
    earlier = EarlierTable(16384, ((1, 1), (3, 2)))
    found = renumbered(properties, earlier, 20000)
    assert found[PROPERTY_RELATION_OID] == "20000"
    assert found[PROPERTY_SLOT] == "s"
    assert recorded_columns(found, 16384) == columns, "the adoption may be given up"
    assert recorded_columns(found, 20000) == {
        "relation_oid": 20000,
        "fields": {"1": 1, "2": 3, "-2": 10, "-3": 12},
        "retired": {"2": [4, 5]},
        "unsent": [-3, -2],
        "unnumbered": [],
        "former": [6, 8, 9],
        "before": columns,
    }
    assert renumbered(found, earlier, 20000) == found, "it was done before"
