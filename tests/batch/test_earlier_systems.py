"""The systems and timelines from which a lake was filled before the present ones."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.batch.earlier_systems import (
    EarlierSystem,
    EarlierTimeline,
    Systems,
    end_before,
    from_text,
    to_text,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
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
