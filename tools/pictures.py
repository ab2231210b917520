"""``python -m tools.pictures``: the pictures of the pages, drawn into docs/images/ as SVG.

A picture is a list of boxes and arrows on a grid. The colours suit a light and a dark page.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools import plots

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
_COLUMN: Final = 170
_ROW: Final = 92
_WIDTH: Final = 132
_HEIGHT: Final = 52
_LINE: Final = 15
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#333;text-anchor:middle}"
    ".note{font-size:11px}.box{fill:#eef4fb;stroke:#4a7ab5}.store{fill:#f3f0e6;stroke:#9a8a4a}"
    ".stop{fill:#fbeeee;stroke:#b54a4a}.arrow{stroke:#777;fill:none}.head{fill:#777}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.box{fill:#1d2c3d}.store{fill:#332f1f}"
    ".stop{fill:#3d1d1d}.arrow{stroke:#aaa}.head{fill:#aaa}}"
)


@dataclass(frozen=True, slots=True)
class Box:
    """A box on the grid.

    :ivar kind: ``box`` for what works, ``store`` for what lasts, ``stop`` for what ends a run.
    """

    column: float
    row: float
    text: str
    kind: str = "box"

    @property
    def middle(self) -> tuple[float, float]:
        """Its middle, in pixels."""
        return self.column * _COLUMN + _COLUMN / 2, self.row * _ROW + _ROW / 2

    def svg(self) -> str:
        """The box with its lines of text."""
        x, y = self.middle
        lines = self.text.split("\n")
        first = y + 5 - (len(lines) - 1) * _LINE / 2
        rounded = 14 if self.kind == "box" else 3
        drawn = [
            (
                f'<rect class="{self.kind}" x="{x - _WIDTH / 2:g}" y="{y - _HEIGHT / 2:g}"'
                f' width="{_WIDTH}" height="{_HEIGHT}" rx="{rounded}"/>'
            )
        ]
        drawn += [
            f'<text x="{x:g}" y="{first + number * _LINE:g}">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ]
        return "\n".join(drawn)


@dataclass(frozen=True, slots=True)
class Arrow:
    """A straight arrow from one box's edge to another's, with a note beside its middle."""

    start: Box
    end: Box
    note: str = ""

    def svg(self) -> str:
        """The line, and the note."""
        (x1, y1), (x2, y2) = self.start.middle, self.end.middle
        share = min(
            _WIDTH / 2 / abs(x2 - x1) if x2 != x1 else 1.0,
            _HEIGHT / 2 / abs(y2 - y1) if y2 != y1 else 1.0,
        )
        dx, dy = (x2 - x1) * share, (y2 - y1) * share
        drawn = (
            f'<path class="arrow" marker-end="url(#head)"'
            f' d="M{x1 + dx:g} {y1 + dy:g}L{x2 - dx:g} {y2 - dy:g}"/>'
        )
        if self.note:
            beside = 34 if x1 == x2 else 0
            x, y = (x1 + x2) / 2 + beside, (y1 + y2) / 2 - (0 if beside else 6)
            drawn += f'\n<text class="note" x="{x:g}" y="{y:g}">{escape(self.note)}</text>'
        return drawn


def picture(title: str, boxes: list[Box], arrows: list[Arrow]) -> str:
    """An SVG document."""
    width = (max(each.column for each in boxes) + 1) * _COLUMN
    height = (max(each.row for each in boxes) + 1) * _ROW
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
                f' width="{width:g}" height="{height:g}" role="img">'
            ),
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            (
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
                ' markerHeight="8" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
            ),
            *(each.svg() for each in arrows),
            *(each.svg() for each in boxes),
            "</svg>\n",
        ]
    )


def way_of_a_batch() -> str:
    """From the slot to the tables, and back to the slot."""
    slot, stage = Box(0, 0, "slot\nPostgreSQL", "store"), Box(1, 0, "stage\nread, decode")
    batch, apply = Box(2, 0, "staged batch\nParquet, manifest", "store"), Box(3, 0, "apply\nSpark")
    tables = Box(4, 0, "Iceberg tables\nLSN in each commit", "store")
    checkpoint, advance = Box(3, 1, "checkpoint\ntable", "store"), Box(1, 1, "advance")
    arrows = [
        Arrow(slot, stage),
        Arrow(stage, batch),
        Arrow(batch, apply),
        Arrow(apply, tables),
        Arrow(apply, checkpoint),
        Arrow(checkpoint, advance, "how far the lake is"),
        Arrow(advance, slot, "WAL may go"),
    ]
    boxes = [slot, stage, batch, apply, tables, checkpoint, advance]
    return picture("The way of a batch", boxes, arrows)


def fence() -> str:
    """Two drivers at one table: the one that comes late publishes nothing."""
    head = Box(1, 1, "table\nsnapshot 7", "store")
    late, other = Box(0, 0, "driver A\nprepares on 7"), Box(2, 0, "driver B\nprepares on 7")
    published = Box(2, 1, "table\nsnapshot 8", "store")
    refused = Box(0, 1, "refused: the table\nis no longer at 7", "stop")
    arrows = [
        Arrow(late, head),
        Arrow(other, head),
        Arrow(other, published, "first"),
        Arrow(late, refused, "second"),
    ]
    return picture("The fence", [head, late, other, published, refused], arrows)


def order_of_durability() -> str:
    """What has to last before the next step begins."""
    names = ("data files", "manifest", "tables'\ncommits", "checkpoint\nrow", "slot's\nposition")
    boxes = [Box(number, 0, name, "store") for number, name in enumerate(names)]
    dies = (
        "nothing\nhappened",
        "batch is\nused again",
        "done tables\nare skipped",
        "apply\nis skipped",
    )
    again = [Box(number + 0.5, 1, text) for number, text in enumerate(dies)]
    arrows = [Arrow(one, two) for one, two in itertools.pairwise(boxes)]
    return picture(
        "The order of durability, and what a run does after a death in between",
        [*boxes, *again],
        arrows,
    )


def kinds_of_runs() -> str:
    """What a stage task does, by what it finds."""
    begin = Box(0, 1, "stage task")
    first = Box(1.3, 0, "no checkpoint,\nno slot")
    later = Box(1.3, 1, "checkpoint\nand slot")
    lost = Box(1.3, 2, "checkpoint,\nno slot")
    copies = Box(2.6, 0, "first run: make\nslot, copy tables", "store")
    stream = Box(2.6, 1, "next run: read\nfrom the checkpoint", "store")
    refused = Box(2.6, 2, "SlotNotFound, or\na copy if you say so", "stop")
    arrows = [Arrow(begin, each) for each in (first, later, lost)]
    arrows += [Arrow(first, copies), Arrow(later, stream), Arrow(lost, refused)]
    return picture(
        "The kinds of runs", [begin, first, later, lost, copies, stream, refused], arrows
    )


PICTURES: Final[dict[str, Callable[[], str]]] = {
    "way_of_a_batch": way_of_a_batch,
    "fence": fence,
    "order_of_durability": order_of_durability,
    "kinds_of_runs": kinds_of_runs,
    "staging_speed": plots.staging,
    "apply_speed": plots.apply,
}


def main() -> None:
    """Draw all."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
