"""What hypothesis makes of each type: texts that PostgreSQL reads as values of it."""

from __future__ import annotations

import math

from hypothesis import strategies as st


def moments(least_year: int = 1, most_year: int = 9999) -> st.SearchStrategy[str]:
    return st.builds(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}".format,
        st.integers(least_year, most_year),
        st.integers(1, 12),
        st.integers(1, 28),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.one_of(
            st.just(0), st.integers(0, 999_999), st.integers(0, 99).map(lambda n: n * 10_000)
        ),
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NASTY_TEXTS = st.one_of(TEXTS, st.text('{}[]",\\= >NULnul1;\n', max_size=8), st.just("NULL"))
TIMESTAMPS = st.one_of(
    moments(),
    moments(1, 4712).map(lambda text: f"{text} BC"),
    moments(10_000, 294_275),
    st.sampled_from(
        [
            "infinity",
            "-infinity",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "10000-01-01 00:00:00",
            "0001-12-31 23:59:59.999999 BC",
            "4713-11-24 00:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "1582-10-10 12:00:00",
        ]
    ),
)
DATES = st.one_of(
    TIMESTAMPS.map(lambda text: text.split(" ")[0] + (" BC" if text.endswith("BC") else "")),
    st.just("5874897-12-31"),
)
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([-0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e22, 1e23, math.pi]),
)


def decimals(digits: int, scale: int) -> st.SearchStrategy[str]:
    bound = 10**digits - 1
    return st.one_of(
        st.integers(-bound, bound).map(lambda n: f"{n}e-{scale}"),
        st.sampled_from(
            ["NaN", "0", "-0.01", f"{bound}e-{scale}", f"-{bound}e-{scale}", f"1e-{scale}"]
        ),
    )


SCALARS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "bool": ("bool", st.sampled_from(["true", "false"])),
    "int2": ("int2", st.integers(-(2**15), 2**15 - 1).map(str)),
    "int4": ("int4", st.integers(-(2**31), 2**31 - 1).map(str)),
    "int8": ("int8", st.integers(-(2**63), 2**63 - 1).map(str)),
    "oid": ("oid", st.integers(0, 2**32 - 1).map(str)),
    "xid": ("xid", st.integers(0, 2**32 - 1).map(str)),
    "cid": ("cid", st.integers(0, 2**32 - 1).map(str)),
    "xid8": ("xid8", st.integers(0, 2**64 - 1).map(str)),
    "float4": ("float4", st.floats(width=32).map(str)),
    "float8": ("float8", FLOATS.map(repr)),
    "numeric(1,0)": ("numeric", decimals(1, 0)),
    "numeric(12,2)": ("numeric", decimals(12, 2)),
    "numeric(18,18)": ("numeric", decimals(18, 18)),
    "numeric(38,0)": ("numeric", decimals(38, 0)),
    "numeric(38,37)": ("numeric", decimals(38, 37)),
    "numeric(3,-2)": ("numeric", st.integers(-999, 999).map(lambda n: f"{n}00")),
    "numeric(3,5)": ("numeric", st.integers(-999, 999).map(lambda n: f"{n}e-5")),
    "date": ("date", DATES),
    "timestamp": ("timestamp", TIMESTAMPS),
    "timestamp(3)": ("timestamp", TIMESTAMPS),
    "timestamptz": ("timestamptz", TIMESTAMPS),
    "bytea": ("bytea", st.binary(max_size=40).map(lambda value: rf"\x{value.hex()}")),
    "text": ("text", TEXTS),
    "varchar(12)": ("text", TEXTS),
    "char(5)": ("text", st.text("abé ", max_size=5)),
    "public.price": ("numeric", st.integers(1, 10**12 - 1).map(lambda n: f"{n}e-2")),
    "public.small_price": ("numeric", st.integers(1, 9999).map(lambda n: f"{n}e-2")),
}
UNBOUNDED = st.one_of(
    st.integers(-(10**45), 10**45).map(str),
    st.builds("{}e{}".format, st.integers(-(10**20), 10**20), st.integers(-200, 200)),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e130", "0.10"]),
)
