"""The pages of operators have every argument, as the docstrings describe it, with the code's default.

``python -m tests.docs.test_arguments_page`` draws the pages anew, and their list in
docs/reference/arguments.md. The options inside of ``table_options`` and ``plan_options`` are in
docs/reference/tables.md by hand; that all are there is tested here, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import ANSWERS
from airflow_provider_pgoutput.batch.changes import METADATA_COLUMNS
from airflow_provider_pgoutput.batch.jobs import (
    ApplyJob,
    TableOptions,
    is_partition_transform,
)
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.provider_info import get_provider_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "arguments.md"
TABLES = DOCS / "reference" / "tables.md"
OPERATORS = DOCS / "reference" / "operators"
START = "<!-- drawn by tests/docs/test_arguments_page.py from the docstrings -->"
END = "<!-- end of the drawing -->"
PACKAGE = "airflow_provider_pgoutput"

_PARAMETER = re.compile(r"^ *:param (\w+): (.*?)(?=^ *:param |^ *$|\Z)", re.MULTILINE | re.DOTALL)
#: A line that is a heading, or the begin of an argument.
_HEADING_OR_PARAMETER = re.compile(r"^\*\*(.+)\*\*$|^:param (\w+):", re.MULTILINE)
_TEMPLATED = re.compile(r"\s*\(templated\)")
#: The sentence in place of a mark at each argument.
_ALL_TEMPLATED = "All arguments are templated"


def doors() -> list[type]:
    """The operators, the sensor and the trigger that the provider names."""
    info = get_provider_info()
    modules = [
        importlib.import_module(name)
        for kind in ("operators", "sensors", "triggers")
        for entry in info[kind]
        for name in entry["python-modules"]
    ]
    return [
        each
        for module in modules
        for name, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__ == module.__name__ and name.startswith("Pgoutput")
    ]


def described() -> list[Any]:
    """What has a page: the task groups, and the doors."""
    from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg
    from airflow_provider_pgoutput.task_groups.verification import verify_lake

    return [pgoutput_to_iceberg, verify_lake, *doors()]


def lineage(door: Any) -> list[Any]:
    """A door and the bases of ours whose arguments it has, too."""
    if not inspect.isclass(door):
        return [door]
    return [each for each in door.__mro__ if each.__module__.startswith(PACKAGE)]


def signature(door: Any) -> dict[str, inspect.Parameter]:
    """The arguments that a class or function adds."""
    function: Callable[..., Any] = door.__init__ if inspect.isclass(door) else door
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def meanings(door: Any) -> dict[str, str]:
    """The docstring's text of each argument, on one line."""
    text = inspect.getdoc(door) or ""
    return {found[1]: " ".join(found[2].split()) for found in _PARAMETER.finditer(text)}


def is_templated(door: Any, name: str) -> bool:
    if not inspect.isclass(door):
        return "(templated)" in meanings(door)[name]
    return name in getattr(door, "template_fields", ())


def _link(found: re.Match[str]) -> str:
    """A link with the title of the page; pages of operators are two folders below docs/."""
    title = (DOCS / found[1]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}](../../{found[1]})"


def markdown(text: str) -> str:
    """A docstring's text in Markdown, without the mark that has a column of its own."""
    linked = re.sub(r"``docs/([\w/-]+\.md)``", _link, _TEMPLATED.sub("", text))
    return linked.replace("``", "`").replace("|", "\\|")


def default_of(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    return f"`{parameter.default!r}`".replace("datetime.", "")


def page_of(door: Any) -> Path:
    """``PgoutputCheckHealthOperator`` has ``check_health.md``, ``verify_lake`` has ``verify_lake.md``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", door.__name__.removeprefix("Pgoutput")).lower()
    return OPERATORS / f"{words.removesuffix('_operator')}.md"


def first_sentence(door: Any) -> str:
    """What the docstring begins with."""
    return markdown((inspect.getdoc(door) or "").partition("\n\n")[0].replace("\n", " "))


def page(door: Any) -> str:
    """The page of a door: a table of its own arguments, and one for each base."""
    lines = [f"# {door.__name__}", "", START, "", first_sentence(door), ""]
    lines += [
        f"From `{door.__module__}`. [Arguments](../arguments.md) says what they have in common."
    ]
    for each in lineage(door):
        if each is not door and signature(each):
            lines += ["", f"## Inherited from {each.__name__}"]
        lines += tables(each)
    return "\n".join([*lines, ""])


def tables(door: Any) -> list[str]:
    """The arguments that a class or function adds, a table for each heading of its docstring."""
    lines: list[str] = []
    parameters, texts = signature(door), meanings(door)
    for heading, names in groups_of(door, parameters).items():
        lines += ["", f"### {heading}"] if heading else []
        lines += ["", "| argument | default | templated | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {default_of(parameters[name])} | {'yes' if is_templated(door, name) else ''} |"
            f" {markdown(texts[name])} |"
            for name in names
        ]
    return lines


def groups_of(door: Any, parameters: Iterable[str]) -> dict[str, list[str]]:
    """The arguments of a door by the headings of its docstring, such as ``**Limits**``."""
    found: dict[str, list[str]] = {}
    heading = ""
    for title, name in _HEADING_OR_PARAMETER.findall(inspect.getdoc(door) or ""):
        heading = title or heading
        if name in parameters:
            found.setdefault(heading, []).append(name)
    return found


def drawn(before: str) -> str:
    """The page that lists the others, with the list of today."""
    head, _, rest = before.partition(START)
    _, _, after = rest.partition(END)
    rows = "\n".join(
        f"| [`{each.__name__}`](operators/{page_of(each).name}) | {first_sentence(each)} |"
        for each in described()
    )
    return f"{head}{START}\n\n| page | what it is |\n|---|---|\n{rows}\n\n{END}{after}"


def test_every_argument_has_a_line_in_its_docstring(airflow_home: Path) -> None:
    assert len(doors()) >= 9
    for door in {base for each in described() for base in lineage(each)}:
        assert list(meanings(door)) == list(signature(door)), door


def test_the_docstrings_say_what_is_templated(airflow_home: Path) -> None:
    for door in {base for each in filter(inspect.isclass, described()) for base in lineage(each)}:
        everything = _ALL_TEMPLATED in (door.__doc__ or "")
        for name, text in meanings(door).items():
            said = everything or "(templated)" in text
            assert said == is_templated(door, name), (door, name)


def test_the_pages_have_the_arguments_of_the_code(airflow_home: Path) -> None:
    said = "run python -m tests.docs.test_arguments_page"
    text = PAGE.read_text(encoding="utf-8")
    assert START in text
    assert END in text
    assert text == drawn(text), said
    wanted = {page_of(door): page(door) for door in described()}
    assert {each: each.read_text(encoding="utf-8") for each in OPERATORS.glob("*.md")} == wanted, (
        said
    )


def test_a_number_that_is_chosen_for_none_is_the_one_that_is_told(airflow_home: Path) -> None:
    from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
    from airflow_provider_pgoutput.spark_submit.copy_engine import FROM_BYTES, CopyingOperator

    chosen = {each.name: each.default for each in dataclasses.fields(CaptureRequest)}
    told = meanings(PgoutputStageOperator)
    for name in ("memory_mib", "copy_connections"):
        assert told[name].endswith(f"None: {chosen[name]}.")
    assert f"None: {FROM_BYTES >> 30} GiB." in meanings(CopyingOperator)["spark_copy_from_bytes"]


def rows_of(first: str) -> dict[str, list[str]]:
    """The rows of the table on the page of tables whose heading begins so, by the name in the first cell."""
    table = TABLES.read_text().partition(f"\n| {first} |")[2].partition("\n\n")[0]
    cells = [[each.strip() for each in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_question_has_its_answers_on_the_page() -> None:
    table = PAGE.read_text().partition("| argument | about |")[2].partition("\n\n")[0]
    told = {}
    for line in table.splitlines()[2:]:
        _, name, _, answers, _ = line.split("|")
        told[name.strip(" `")] = tuple(re.findall("`(.*?)`", answers))
    assert told == ANSWERS
    from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
    from airflow_provider_pgoutput.operators.check_health import PgoutputCheckHealthOperator
    from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
    from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
    from airflow_provider_pgoutput.spark_submit.operator import SparkApplyOperator

    operators = (
        PgoutputStageOperator,
        PgoutputApplyOperator,
        SparkApplyOperator,
        PgoutputVerifyOperator,
        PgoutputCheckHealthOperator,
    )
    asked = {name: each for kind in operators for name, each in signature(kind).items()}
    assert {name: answers[0] for name, answers in ANSWERS.items()} == {
        name: asked[name].default for name in asked if name.startswith("on_")
    }


def test_every_option_of_a_table_is_described() -> None:
    assert list(rows_of("option of `table_options`")) == [
        each.name for each in dataclasses.fields(TableOptions)
    ]


def test_every_option_of_a_plan_is_described_with_its_default() -> None:
    from airflow_provider_pgoutput.tasks.plan_options import PLAN_OPTIONS

    defaults = {each.name: each.default for each in dataclasses.fields(ApplyJob)}
    rows = rows_of("option of `plan_options`")
    assert rows.keys() == PLAN_OPTIONS.keys()
    for name, (_, default) in rows.items():
        assert default.partition(":")[0] == f"`{defaults[name]}`"


def test_every_metadata_column_is_described_with_its_type() -> None:
    assert {name: row[0].strip("`") for name, row in rows_of("column").items()} == METADATA_COLUMNS


def test_the_partition_transforms_are_taken() -> None:
    shown = [name for cell in rows_of("in `partitioned_by`") for name in re.split("`, `", cell)]
    assert len(shown) == 7
    assert [each for each in (*shown, "days(`made at`)") if not is_partition_transform(each)] == []


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    OPERATORS.mkdir(exist_ok=True)
    for each in OPERATORS.glob("*.md"):
        each.unlink()
    for each in described():
        page_of(each).write_text(page(each), encoding="utf-8")
