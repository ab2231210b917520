"""The site of the documentation can be built, and everybody finds each page in it.

``python -m tests.docs.test_site`` is what ``make docs`` runs: it builds the site into ``site/``. The builder
has an environment of its own. What is not here: links and anchors as GitHub shows them (``test_pages.py``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lakes.programs import Unavailable, python_with

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
#: Material for MkDocs ends in 2027, and its makers have written this one in its place.
BUILDER = "zensical==0.0.73"
_MOST_LINES = 300
_LINK = re.compile(r"\]\(([^)#:\s]+)")


def build(project: Path) -> None:
    """Build the site of a checkout into its folder ``site``.

    :raises Unavailable: the builder cannot be installed.
    :raises AssertionError: a link leads nowhere, or the builder warned of something else.
    """
    zensical = python_with("docs", BUILDER) / "zensical"
    done = subprocess.run(
        [str(zensical), "build", "--strict"],
        cwd=project,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "No issues found" in done.stdout, done.stdout


def in_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from in_navigation(below)


def test_every_page_is_in_the_navigation_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(in_navigation(project["nav"])) == PAGES


def test_the_index_leads_to_every_page_that_no_other_list_has() -> None:
    linked = set(_LINK.findall((DOCS / "index.md").read_text(encoding="utf-8")))
    listed = ("internals/decisions/", "reference/operators/")
    assert {each for each in PAGES if not each.startswith(listed)} - {"index.md"} <= linked


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page: str) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").count("\n")
    assert lines <= _MOST_LINES


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_stay_in_the_site(page: str) -> None:
    """The site has only what is in docs/. A link to another file needs the repository's address."""
    linked = _LINK.findall((DOCS / page).read_text(encoding="utf-8"))
    outside = [
        each
        for each in linked
        if not (DOCS / page).parent.joinpath(each).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    try:
        build(tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    for page in PAGES:
        address = page.removesuffix(".md").removesuffix("README").removesuffix("index")
        assert (tmp_path / "site" / address / "index.html").is_file(), page
    assert (tmp_path / "site" / "search.json").is_file()


if __name__ == "__main__":
    build(ROOT)
    print(f"docs: {ROOT / 'site' / 'index.html'}")
    sys.exit(0)
