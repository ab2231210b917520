"""What the pages say can be followed: links lead somewhere, commands and files exist.

What is not here: the Python code of the pages (``test_python_blocks.py``).
"""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_FOLDERS = (
    "airflow_provider_pgoutput",
    "benchmarks",
    "dags_examples",
    "quickstart",
    "scripts",
    "tests",
    "tools",
)
SOURCES = [
    f"/{path.relative_to(ROOT)}" for each in _FOLDERS for path in (ROOT / each).rglob("*.py")
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> str:
    """All that stands in blocks and in backticks."""
    text = page.read_text()
    fenced = re.findall(r"^```.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", text)])


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    inner = [each for each in targets if "://" not in each]
    assert [each for each in inner if not (page.parent / each).exists()] == []


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links, as GitHub makes it, and anchors that the page has."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)"></a>', text)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings} | {*named}


@pytest.mark.parametrize("name", NAMES)
def test_anchors_lead_to_a_heading(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    pages = [(page.parent / each if each else page, anchor) for each, anchor in targets]
    assert [each for each in pages if each[1] not in anchors(each[0])] == []


@pytest.mark.parametrize("name", NAMES)
def test_make_targets_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^make ([a-z-]+)|(?<=`)make ([a-z-]+)", commands(ROOT / name), re.MULTILINE)
    missing = {one or two for one, two in named} - set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert missing == set()


@pytest.mark.parametrize("name", NAMES)
def test_modules_that_are_started_exist(name: str) -> None:
    named = re.findall(r"python3? -m ([\w.]+)", commands(ROOT / name))
    ours = [
        each for each in named if each.split(".")[0] in {"airflow_provider_pgoutput", "benchmarks"}
    ]
    assert [each for each in ours if importlib.util.find_spec(each) is None] == []


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_package_that_are_named_exist(name: str) -> None:
    named = re.findall(
        r"`((?:airflow_provider_pgoutput|dags_examples|tests|benchmarks)/[\w./]+)`",
        (ROOT / name).read_text(),
    )
    # What a benchmark writes is no file of the repository.
    kept = [each for each in named if not each.startswith("benchmarks/results/")]
    assert [each for each in kept if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_python_files_that_are_named_by_the_end_of_their_path_exist(name: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / name).read_text()))
    assert {
        each for each in named if not any(path.endswith(f"/{each}") for path in SOURCES)
    } == set()


def test_make_without_a_target_lists_the_targets() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for target in ("demo", "test", "bench", "airflow"):
        assert f"make {target}" in shown


def test_the_readme_begins_with_the_two_commands() -> None:
    first = blocks(ROOT / "README.md", "")[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]
