"""LSNs: every legal text form parses to the number PostgreSQL means; everything else is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.errors import ConfigurationError


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_survives_its_text_form(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0/0", 0),
        ("0/9", 9),
        ("0/10", 16),
        ("16/B374D848", 0x16B374D848),
        ("16/b374d848", 0x16B374D848),
        ("00000016/0000000A", 0x160000000A),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
    ],
)
def test_text_forms_of_postgresql_are_parsed(text: str, value: int) -> None:
    assert Lsn.parse(text) == value


@given(st.integers(0, 2**64 - 1))
def test_the_sixteen_digits_of_the_checkpoint_table_are_parsed(value: int) -> None:
    digits = Lsn(value).sortable
    assert Lsn.parse(digits) == Lsn.parse(digits.lower()) == value


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", "-0/1", "0/-1", "0x1/2", "0/1 ", " 0/1", "0/1\n", "0//1", "0/1/2",
     "100000000/0", "0/100000000", "g/0", "0-1", "\u0661/0",
     "00000016B374D84", "00000016B374D8480", "00000016B374D84G", "0x0000016B374D84", "00000016 B374D848",
     "00000016B374D848\n", "\u0661" * 16],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an LSN") as refused:
        Lsn.parse(text)
    assert "16/B374D848" in str(refused.value)
    assert "00000016B374D848" in str(refused.value)


def test_a_number_is_no_text_form() -> None:
    number: Any = 1000000000000016
    with pytest.raises(ConfigurationError, match="is not an LSN"):
        Lsn.parse(number)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_number_outside_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ConfigurationError, match="64 bits"):
        Lsn(value)


def test_lsns_compare_as_numbers_and_their_sortable_form_sorts_alike() -> None:
    nine, ten = Lsn.parse("0/9"), Lsn.parse("0/10")
    assert nine < ten
    assert nine.sortable < ten.sortable
    assert f"{ten}" == "0/10"


@given(st.integers(0, 2**62), st.integers(1, 2**62))
def test_an_offset_brings_all_lsns_of_a_server_past_one_of_the_lake(lake: int, server: int) -> None:
    offset = LsnOffset.past(Lsn(lake))
    counted = offset.of_lake(str(Lsn(server)))
    assert counted > lake
    assert counted % 2**32 == server % 2**32, "places in pages and segments stay the same"
    assert offset.of_server(counted) == server


def test_an_lsn_of_zero_means_none_with_any_offset() -> None:
    offset = LsnOffset.past(Lsn.parse("16/B374D848"))
    assert str(offset) == "17/0"
    assert offset.of_lake("0/0") == 0
    assert offset.of_server(Lsn.parse("16/1")) == 0, "the system has no such LSN"
    assert NO_OFFSET.of_lake("16/B374D848") == NO_OFFSET.of_server(Lsn.parse("16/B374D848"))
