"""docs/explanation/one_change.md shows what a statement becomes on its way to the lake: from a real run.

``python -m tests.docs.test_one_change_page`` draws it anew. Positions, transaction ids, OIDs and times differ
from run to run, so they have names on the page. The text between the drawings is by hand.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.pgoutput.messages import (
    Relation,
    parse_begin,
    parse_commit,
    parse_relation,
    parse_truncate,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    oid_of_row,
    parse_row,
)
from airflow_provider_pgoutput.capture.pgoutput.state import EVENT_NAMES
from tests.conformance.pipeline import Pipeline
from tests.docs.one_change import SETUP, STEPS, Rows, Step, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.capture.pgoutput.reference import Tuple, Value
    from quickstart.postgres import EmbeddedPostgres

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "one_change.md"
#: Set: the page is written anew, and not only compared.
WRITE = "WRITE_ONE_CHANGE_PAGE"
END = "<!-- end of the drawing -->"
MOST_LINES = 250

_DRAWING = re.compile(
    rf"<!-- drawn by tests/docs/{re.escape(Path(__file__).name)}: (.+?), (.+?) -->\n.*?{END}",
    re.DOTALL,
)
_PARTS = ("wire", "staged", "lake", "change log", "log")
_LONG = 20
_IN_LINES = {
    r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b": "<LSN>",
    r"\b\d+\.\d+ s\b": "<time>",
    # Positions and times are in the file, too, so its size differs.
    r"\b\d+ bytes\b": "<size>",
}


class Drawer:
    """Draws parts of steps. The first transaction that it meets is ``xid 1`` at ``LSN 1``, and so on."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._relations: dict[int, Relation] = {}
        self._lines: set[str] = set()

    def part(self, name: str, step: Step) -> str:
        return {
            "wire": self._wire,
            "staged": self._staged,
            "lake": lambda each: self._table(each.lake),
            "change log": self._change_log,
            "log": self._log,
        }[name](step)

    def _name(self, kind: str, number: int) -> str:
        known = sum(each == kind for each, _ in self._names)
        return self._names.setdefault((kind, number), f"{kind} {known + 1}")

    def _wire(self, step: Step) -> str:
        statements = [f"=> {each};" for each in step.statements]
        return "\n".join(["```text", *statements, *map(self._message, step.wire), "```"])

    def _message(self, body: bytes) -> str:
        tag = chr(body[0])
        about = {"B": self._begin, "C": self._commit, "R": self._relation, "T": self._truncate}
        return f"{tag}  {EVENT_NAMES[tag]:<8}  {about.get(tag, self._row)(body)}"

    def _begin(self, body: bytes) -> str:
        begin = parse_begin(body)
        return f"{self._name('xid', begin.xid)}, commits at {self._name('LSN', begin.final_lsn)}, <time>"

    def _commit(self, body: bytes) -> str:
        commit = parse_commit(body)
        return f"at {self._name('LSN', commit.commit_lsn)}, ends before <LSN>, <time>"

    def _relation(self, body: bytes) -> str:
        relation = parse_relation(body)
        self._relations[relation.oid] = relation
        columns = ", ".join(
            f"{'*' if each.is_identity else ''}{each.name} {_type_name(each.type_oid)}"
            for each in relation.columns
        )
        return (
            f"{self._name('OID', relation.oid)} is {relation.name}, replica identity"
            f" {relation.replica_identity}, columns ({columns})"
        )

    def _truncate(self, body: bytes) -> str:
        return ", ".join(self._name("OID", oid) for oid in parse_truncate(body).relation_oids)

    def _row(self, body: bytes) -> str:
        oid = oid_of_row(body, None)
        old_kind, old, new = parse_row(body, self._relations[oid], None)
        texts = [self._name("OID", oid)]
        texts += [] if old is None else [f"old {old_kind} {_tuple(old)}"]
        texts += [] if new is None else [f"new N {_tuple(new)}"]
        return ", ".join(texts)

    def _staged(self, step: Step) -> str:
        return "\n\n".join(self._table(rows) for rows in step.staged.values())

    def _change_log(self, step: Step) -> str:
        # No change of this page comes from another server.
        rows = [
            {name: each for name, each in row.items() if "_origin" not in name}
            for row in step.change_log
        ]
        return self._table(rows)

    def _table(self, rows: Rows) -> str:
        if not rows:
            return "No rows."
        lines = [list(rows[0]), ["---"] * len(rows[0])]
        lines += [[self._cell(name, value) for name, value in row.items()] for row in rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def _cell(self, name: str, value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, datetime):
            return "`<time>`"
        if name.endswith("commit_lsn"):
            return self._name("LSN", value)
        if name.endswith("xid"):
            return self._name("xid", value)
        if isinstance(value, list):
            # A map is read as pairs.
            texts = [each if isinstance(each, str) else ": ".join(each) for each in value]
            return ", ".join(texts) or "none"
        return str(value).lower() if isinstance(value, bool) else _short(str(value))

    def _log(self, step: Step) -> str:
        # A line that an earlier step has, too, says nothing new.
        lines = [each for each in map(_line, step.lines) if each not in self._lines]
        self._lines.update(lines)
        return "\n".join(["```text", *lines, "```"])


def _line(line: tuple[str, str, str]) -> str:
    task, level, text = line
    for pattern, name in _IN_LINES.items():
        text = re.sub(pattern, name, text)
    return f"{task}: {'' if level == 'INFO' else f'{level} '}{text}"


def _type_name(oid: int) -> str:
    found = psycopg.adapters.types.get(oid)
    assert found is not None, oid
    return found.regtype


def _tuple(values: Tuple) -> str:
    return f"({', '.join(map(_value, values))})"


def _value(value: Value) -> str:
    """A value after the mark that it has on the wire."""
    if value is None:
        return "n"
    if value is UNCHANGED:
        return "u"
    assert isinstance(value, bytes), "the page is drawn in text form"
    return f"t {_short(value.decode())}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:3]}… ({len(text):,} characters)"


def drawn(page: str, steps: dict[str, Step]) -> str:
    """The page with the drawings of a run, in the order of the page."""
    drawer = Drawer()

    def draw(found: re.Match[str]) -> str:
        head, _, _ = found[0].partition("\n")
        parts = [drawer.part(part, steps[found[1]]) for part in found[2].split(" + ")]
        return "\n\n".join([head, *parts, END])

    return _DRAWING.sub(draw, page)


def test_the_page_has_every_part_of_every_step() -> None:
    drawings = _DRAWING.finditer(PAGE.read_text(encoding="utf-8"))
    shown = [(found[1], part) for found in drawings for part in found[2].split(" + ")]
    assert shown == [(step, part) for step in STEPS for part in _PARTS]


def test_the_page_shows_how_the_table_was_made() -> None:
    (shown, *_) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown == "".join(f"{each};\n" for each in SETUP)


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < MOST_LINES


def test_the_page_shows_what_happens(
    postgres_server: EmbeddedPostgres,
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(
        conninfo=postgres_database,
        slot_name="s_one_change",
        publication_names=("p",),
        namespace="n_one_change",
        staging=tmp_path,
        catalog_properties=lake_catalog_properties,
        spark=spark,
    )
    steps = run(pipeline)
    page = PAGE.read_text(encoding="utf-8")
    now = drawn(page, steps)
    if WRITE in os.environ:
        assert f"PostgreSQL {postgres_server.major}" in page
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert page == now, "run python -m tests.docs.test_one_change_page"


if __name__ == "__main__":
    # pytest's fixtures start the server and Spark.
    os.environ[WRITE] = "yes"
    sys.exit(pytest.main([__file__, "-n0", "-q", "-k", "what_happens"]))
