"""Masks and filters for the random sessions of ``torture.py``, and what they make of each change.

No code of the pipeline is used here: values are masked by ``tests/chaos/in_lake.py``, and the server itself
says which rows pass a condition.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb
from pyarrow import parquet

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.capture.pgoutput.reference import UNCHANGED
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.chaos.in_lake import Way

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source
    from tests.capture.torture import Row, Values

SECRET = "a secret of random sessions"
_MASKS = ("hash", "redact", "truncate(2)", "null", "drop")
#: Columns that stay, and whether rows are found by them.
COLUMNS = {
    "account": {"id": True, "name": False, "large": False, "amount": False},
    "bag": {"x": True, "y": True},
    "journal": {"id": True, "v": False},
}
#: Conditions on columns of the replica identity, and what the server has to know of these columns.
_CONDITIONS = {
    "account": ("id > 7", "id NOT IN (3, 5, 8, 13)", "NOT (id < 4)"),
    "bag": ("x <> 2", "y = 'b' OR x > 1", "y IS NOT NULL AND x IN (0, 1, 4)", "NOT (y = 'c')"),
    "journal": ("id <= 12", "id IN (1, 2, 3, 9, 11, 20, 120, 1030)", "id > 7"),
}
_TYPES = {"account": "id int", "bag": "x int, y text", "journal": "id int"}
#: What a plain value of a column has, and no mask leaves.
_PLAIN = {
    "account.name": re.compile(r"mark\d"),
    "account.large": re.compile(r"a{32}|b{32}|c{32}|x{32}"),
    "journal.v": re.compile(r"mark\d|j{32}"),
    "ledger.v": re.compile(r"mark\d|j{32}"),
}
#: Steps of the sessions after which a column may have had a third name.
_OF_SHAPE = {"add", "rename", "swap", "drop", "replace", "retype"}


@dataclass
class OnTheWay:
    """The masks and filters of one run."""

    #: By table, and there by column.
    masks: dict[str, dict[str, str]] = field(default_factory=dict)
    #: By table.
    filters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def drawn(cls, chance: random.Random) -> OnTheWay:
        """Masks, filters, or both."""
        found = cls()
        kinds = chance.choice((("masks",), ("filters",), ("masks", "filters")))
        for table, columns in COLUMNS.items():
            if "masks" in kinds and chance.random() < 0.8:
                found.masks[table] = {
                    column: "hash" if is_key else chance.choice(_MASKS)
                    for column, is_key in columns.items()
                    if chance.random() < (0.4 if is_key else 0.7)
                }
            if "filters" in kinds and chance.random() < 0.8:
                found.filters[table] = chance.choice(_CONDITIONS[table])
        return found

    def take_over(self, table: str, other: str) -> None:
        """Give a table the masks of another one that has the same columns."""
        if other in self.masks:
            self.masks[table] = self.masks[other]

    def arguments(self) -> dict[str, Any]:
        """Fields of a ``CaptureRequest``."""
        return {
            "columns": {
                f"public.{table}.{column}": word
                for table, masks in self.masks.items()
                for column, word in masks.items()
            },
            "filters": {f"public.{table}": each for table, each in self.filters.items()},
            "mask_secret": SECRET.encode(),
            "on_table_refused": SET_ASIDE,
            "schema_policy": SchemaPolicy(on_unsure_column="ignore"),
        }

    def options(self) -> Iterator[dict[str, Any]]:
        """The ways to read that go with masks and filters."""
        streaming = (None,) if any(self.masks.values()) else ("off", "on")
        for transport, is_binary, word in itertools.product(
            ("sql", "walsender"), (False, True), streaming
        ):
            yield {
                "transport": transport,
                "options": StreamOptions(binary=is_binary, streaming=word),
            }
        for parts, size in ((2, 5_000), (3, 40_000)):
            yield {
                "options": StreamOptions(streaming=streaming[-1]),
                "decode_parallelism": parts,
                "part_bytes": size,
            }

    def expected(self, source: Source, plain: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
        """What the changes of a stream become."""
        found = {}
        for table, rows in plain.items():
            passed = rows
            if table in self.filters:
                passed = list(_filtered(source, table, self.filters[table], rows))
            masked = [self._masked(table, row) for row in passed]
            if masked:
                found[table] = masked
        return found

    def _masked(self, table: str, row: Row) -> Row:
        new, old = (self._values(table, each) for each in (row.new, row.old))
        return row._replace(new=new or None, old=old or None)

    def _values(self, table: str, values: Values | None) -> Values:
        way = Way(self.masks.get(table, {}), SECRET)
        found: Values = {}
        for name, value in (values or {}).items():
            word = way.masks.get(name, "")
            if word == "drop":
                continue
            if value is UNCHANGED or value is None:
                found[name] = value
            else:
                masked = way.masked(value.encode(), word)
                found[name] = None if masked is None else masked.decode()
        return found

    def may_be_refused(self, plain: Mapping[str, list[Row]], done: Mapping[str, int]) -> set[str]:
        """Tables that are set aside, as documented: nobody can know what a change becomes."""
        found = set()
        is_watched = self.masks.get("account") or "account" in self.filters
        if is_watched and done.keys() & _OF_SHAPE:
            found.add("account")
        if "account" in self.filters and any(
            row.op == "U"
            and row.old is not None
            and row.new is not None
            and UNCHANGED in row.new.values()
            for row in plain.get("account", [])
        ):
            found.add("account")
        return found

    def patterns(self, table: str) -> list[re.Pattern[str]]:
        """What no file of a table may have."""
        names = (f"{table}.{column}" for column in self.masks.get(table, {}))
        return [_PLAIN[name] for name in names if name in _PLAIN]

    def plain_places(self, folder: Path, manifest: Manifest) -> list[str]:
        """Files of a batch, and all that is no data, with a plain value of a masked column."""
        found = [
            file.path
            for table in manifest.tables
            for version in table.versions
            for file in version.files
            if holds(folder / file.path, self.patterns(table.table_name))
        ]
        every = [
            re.compile(SECRET),
            *(each for table in self.masks for each in self.patterns(table)),
        ]
        others = (
            each for each in folder.rglob("*") if each.is_file() and each.suffix != ".parquet"
        )
        return [*found, *(str(each) for each in others if holds(each, every))]


def holds(path: Path, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Whether the bytes of a file, or the values in it, have one of the patterns."""
    text = path.read_bytes().decode("latin-1")
    if path.suffix == ".parquet":
        # They lie compressed in it.
        text += str(parquet.read_table(path).to_pylist())
    return any(each.search(text) for each in patterns)


def _filtered(source: Source, table: str, condition: str, rows: Sequence[Row]) -> Iterator[Row]:
    """What a row filter of a publication does."""
    news = _passing(source, table, condition, [row.new for row in rows])
    # Without an old tuple, the columns of the replica identity are as they were.
    olds = _passing(source, table, condition, [row.old or row.new for row in rows])
    for row, was_in, is_in in zip(rows, olds, news, strict=True):
        if row.op == "U" and is_in and not was_in:
            yield row._replace(op="I", old=None)
        elif row.op == "U" and was_in and not is_in:
            yield row._replace(op="D", new=None)
        elif was_in or is_in or row.op == "T":
            yield row


def _passing(
    source: Source, table: str, condition: str, rows: Sequence[Values | None]
) -> list[bool]:
    """The server's answer for each row."""
    given = [
        {"place": place, **{name: None if v is UNCHANGED else v for name, v in row.items()}}
        for place, row in enumerate(rows)
        if row is not None
    ]
    with psycopg.connect(source.conninfo) as session:
        query = (
            f"SELECT place FROM jsonb_to_recordset(%s) AS t(place int, {_TYPES[table]})"
            f" WHERE {condition}"
        )
        found = session.execute(query.encode(), (Jsonb(given),)).fetchall()
    passed = {place for (place,) in found}
    return [place in passed for place in range(len(rows))]
