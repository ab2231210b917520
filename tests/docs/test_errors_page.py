"""docs/reference/errors.md names every error class, and no class that does not exist."""

import inspect
import re
from pathlib import Path

from airflow_provider_pgoutput import errors

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def leaves() -> set[str]:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    parents = {base for each in classes for base in each.__bases__}
    return {each.__name__ for each in classes if each not in parents}


def test_every_error_has_a_row_in_the_page() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(leaves())


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    assert errors.__doc__
    drawn = set(re.findall(r"\|__ (\w+)", errors.__doc__))
    classes = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert drawn == classes - {"PgoutputError"}


def test_the_log_leads_to_the_part_of_the_page_that_has_the_error() -> None:
    part = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ").lower().replace(" ", "-")
        if found := re.match(r"\| `(\w+)` \|", line):
            assert getattr(errors, found[1]).heading == part, found[1]


def test_a_message_says_where_and_what_to_do() -> None:
    error = errors.RowMissing("The row is missing.", table="s.t", lsn="0/10", advice="copy it.")
    assert str(error) == "The row is missing. (table s.t, LSN 0/10) What to do: copy it."
