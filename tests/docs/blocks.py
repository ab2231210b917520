"""The blocks of the pages of tutorial and how-to, in their order, and the marker of those that nothing runs.

A comment on the line above a block says that it is not run, and why: ``<!-- not run: why -->``. Python blocks
of all pages are in ``test_python_blocks.py``. What is not here: who runs which block (``test_blocks.py``).
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
#: Readers do what these pages say, line by line.
PAGES = sorted(
    str(page.relative_to(DOCS))
    for folder in ("tutorial", "how-to")
    for page in (DOCS / folder).glob("*.md")
)
#: Where a statement runs, as a comment of the block says it; the source, if none does.
SOURCE, SPARK = "at the source", "in Spark"
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page.

    :ivar section: the heading above it.
    :ivar number: which block of its page it is, from 1 on.
    :ivar not_run: why nothing runs it; None: a test does.
    """

    page: str
    section: str
    number: int
    language: str
    text: str
    not_run: str | None

    @property
    def name(self) -> str:
        """What a list of blocks calls it."""
        return f"{self.page}:{self.number}"

    def statements(self, place: str = SOURCE) -> list[str]:
        """The statements of SQL for the source or for Spark. A comment says where the ones below it run."""
        lines: dict[str, list[str]] = {SOURCE: [], SPARK: []}
        here = SOURCE
        for line in self.text.splitlines():
            if line.startswith("-- "):
                here = SPARK if line.startswith(f"-- {SPARK}") else SOURCE
            else:
                lines[here].append(line)
        found = "\n".join(lines[place]).strip().removesuffix(";")
        return [each.strip() for each in found.split(";\n") if each.strip()]


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, from its top to its end."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = []
    for number, each in enumerate(_BLOCK.finditer(text), start=1):
        headings = _HEADING.findall(text[: each.start()])
        found.append(
            Block(
                page,
                headings[-1] if headings else "",
                number,
                each["language"].split(" ")[0],
                textwrap.dedent(each["text"]),
                each["why"],
            )
        )
    return found
