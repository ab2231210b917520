"""Tables beside the oracle's: keys whose equality is a question (B34), rows that only their image identifies.

All ride in the same batches. What is not here: running them; ``conftest.py`` does.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

LOW, MIDDLE = "00000000-0000-0000-0000-00000000000a", "6b29fc40-ca47-1067-b31d-00dd010662da"
HIGH = "ffffffff-ffff-ffff-ffff-ffffffffffff"

SETUP = (
    "CREATE TABLE public.k_float(k float8 PRIMARY KEY, v int)",
    "CREATE TABLE public.k_char(k char(3) PRIMARY KEY, v int)",
    "CREATE TABLE public.k_numeric(k numeric PRIMARY KEY, v int)",
    "CREATE TABLE public.k_decimal(k numeric PRIMARY KEY, v int)",
    "CREATE TABLE public.k_uuid(k uuid PRIMARY KEY, v int)",
    "CREATE TABLE public.k_pair(k public.pair PRIMARY KEY, v int)",
    (
        "CREATE TABLE public.whole(p public.pair, ps public.pair[], i interval, t time, u uuid, f float8,"
        " fs float8[])"
    ),
    "ALTER TABLE public.whole REPLICA IDENTITY FULL",
)
TABLES = ("k_float", "k_char", "k_numeric", "k_decimal", "k_uuid", "k_pair", "whole")
COLUMN_TYPES = {
    "public.k_decimal.k": "decimal(20,4)",
    "public.k_uuid.k": "uuid",
    "public.k_pair.k": "struct",
    "public.whole.p": "struct",
    "public.whole.ps": "struct",
    "public.whole.i": "struct",
    "public.whole.t": "micros",
    "public.whole.u": "uuid",
}
_ROW = f"ROW(1, 'x, \"y\"'), ARRAY[ROW(2, NULL), NULL]::public.pair[], '1 mon -1 day', '24:00', '{HIGH}'"
COPIED = (
    "INSERT INTO public.k_float VALUES ('NaN', 1), ('-0', 2), ('Infinity', 3), (0.1, 4)",
    "INSERT INTO public.k_char VALUES ('a', 1), ('ab', 2), ('abc', 3)",
    "INSERT INTO public.k_numeric VALUES (1.0, 1), ('NaN', 2), (2.50, 3)",
    "INSERT INTO public.k_decimal VALUES (1.0, 1), (2.50, 2), (3, 3)",
    f"INSERT INTO public.k_uuid VALUES ('{LOW}', 1), ('{MIDDLE}', 2), ('{HIGH}', 3)",
    "INSERT INTO public.k_pair VALUES (ROW(1, 'a'), 1), (ROW(2, NULL), 2)",
    f"INSERT INTO public.whole VALUES ({_ROW}, '-0', '{{-0,NULL}}'), ({_ROW}, '-0', '{{-0,NULL}}')",
    f"INSERT INTO public.whole VALUES ({_ROW}, 0, '{{0,NULL}}'), ({_ROW}, 'NaN', NULL)",
)
STREAMED = (
    "UPDATE public.k_float SET v = 10 WHERE k = 'NaN'",
    "UPDATE public.k_float SET k = 0, v = 20 WHERE k = 0",
    "DELETE FROM public.k_float WHERE k = 'Infinity'",
    "UPDATE public.k_char SET v = 10 WHERE k = 'a'",
    "UPDATE public.k_char SET k = 'b' WHERE k = 'ab  '",
    "DELETE FROM public.k_char WHERE k = 'abc'",
    "UPDATE public.k_numeric SET k = 1.00, v = 10 WHERE k = 1",
    "UPDATE public.k_numeric SET v = 20 WHERE k = 'NaN'",
    "DELETE FROM public.k_numeric WHERE k = 2.5",
    "UPDATE public.k_decimal SET k = 1.00, v = 10 WHERE k = 1",
    "UPDATE public.k_decimal SET v = 20 WHERE k = 2.5",
    "DELETE FROM public.k_decimal WHERE k = 3.000",
    f"UPDATE public.k_uuid SET v = 20 WHERE k = '{HIGH}'",
    f"DELETE FROM public.k_uuid WHERE k = '{LOW}'",
    f"ALTER TABLE public.k_uuid ADD u uuid DEFAULT '{HIGH}', ADD t time DEFAULT '01:00:00'",
    f"INSERT INTO public.k_uuid VALUES ('{LOW}', 4, '{LOW}', '00:00:01')",
    "UPDATE public.k_pair SET v = 10 WHERE k = ROW(2, NULL)::public.pair",
    "DELETE FROM public.k_pair WHERE k = ROW(1, 'a')::public.pair",
    "INSERT INTO public.k_pair VALUES (ROW(3, 'c'), 3)",
    "DELETE FROM public.whole WHERE ctid = '(0,1)'",
    "UPDATE public.whole SET t = '00:00' WHERE f = 'NaN'",
)
ADDED_COLUMN_TYPES = {"public.k_uuid.u": "uuid", "public.k_uuid.t": "micros"}

_PAIR_AND_MORE = {
    "p": {"a": 1, "b c": 'x, "y"'},
    "ps": [{"a": 2, "b c": None}, None],
    "i": {"months": 1, "days": -1, "micros": 0},
    "t": 86_400_000_000,
    "u": HIGH,
}
#: Rows that each table must have in the end.
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "k_float": [{"k": "nan", "v": 10}, {"k": "0.0", "v": 20}, {"k": "0.1", "v": 4}],
    "k_char": [{"k": "a  ", "v": 10}, {"k": "b  ", "v": 2}],
    "k_numeric": [{"k": "1.00", "v": 10}, {"k": "NaN", "v": 20}],
    "k_decimal": [{"k": Decimal("1.0000"), "v": 10}, {"k": Decimal("2.5000"), "v": 20}],
    "k_uuid": [
        {"k": MIDDLE, "v": 2, "u": HIGH, "t": 3_600_000_000},
        {"k": HIGH, "v": 20, "u": HIGH, "t": 3_600_000_000},
        {"k": LOW, "v": 4, "u": LOW, "t": 1_000_000},
    ],
    "k_pair": [
        {"k": {"a": 2, "b c": None}, "v": 10},
        {"k": {"a": 3, "b c": "c"}, "v": 3},
    ],
    "whole": [
        {**_PAIR_AND_MORE, "f": "-0.0", "fs": ["-0.0", None]},
        {**_PAIR_AND_MORE, "f": "0.0", "fs": ["0.0", None]},
        {**_PAIR_AND_MORE, "t": 0, "f": "nan", "fs": None},
    ],
}
