"""docs/sbom.cdx.json is what scripts/sbom.py writes now, and is closed: nothing that it names is missing."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from scripts import sbom

ROOT = Path(__file__).parents[2]
BILL = json.loads(sbom.TARGET.read_text())


def test_the_bill_of_materials_is_that_of_the_lock_file() -> None:
    assert sbom.TARGET.read_text() == sbom.text(), "stale: run make sbom"


def test_every_dependency_of_the_wheel_is_in_it_with_a_version_and_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    wanted = {re.split(r"[\[<>=!]", each)[0] for each in named}
    components = {each["name"]: each for each in BILL["components"]}
    assert wanted <= components.keys()
    assert len(components) > 100
    for each in BILL["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each["hashes"]
        assert all(re.fullmatch("[0-9a-f]{64}", found["content"]) for found in each["hashes"])
    assert {"pytest", "hypothesis", "ruff"}.isdisjoint(components), "not in the wheel"
    assert (components["numpy"]["scope"], components["pyspark"]["scope"]) == (
        "required",
        "optional",
    )


def test_every_reference_leads_to_a_component() -> None:
    top = BILL["metadata"]["component"]["bom-ref"]
    components = {each["bom-ref"] for each in BILL["components"]}
    assert {each["ref"] for each in BILL["dependencies"]} == components | {top}
    assert {name for each in BILL["dependencies"] for name in each["dependsOn"]} == components


def test_of_several_versions_in_the_lock_file_each_is_listed_and_cycles_end() -> None:
    lock = """
        [[package]]
        name = "airflow-provider-pgoutput"
        dependencies = [{ name = "a", extra = ["more"] }]
        [package.optional-dependencies]
        spark = [{ name = "c" }]
        [[package]]
        name = "a"
        version = "1"
        [package.optional-dependencies]
        more = [{ name = "b", version = "1" }, { name = "b", version = "2" }]
        less = [{ name = "d" }]
        [[package]]
        name = "b"
        version = "1"
        dependencies = [{ name = "a" }]
        [[package]]
        name = "b"
        version = "2"
        [[package]]
        name = "c"
        version = "3"
        [[package]]
        name = "d"
        version = "4"
    """
    found = sbom.bill(lock, "9")
    scopes = {each["bom-ref"]: each["scope"] for each in found["components"]}
    assert scopes == {
        "pkg:pypi/a@1": "required",
        "pkg:pypi/b@1": "required",
        "pkg:pypi/b@2": "required",
        "pkg:pypi/c@3": "optional",
    }
    needed = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert needed["pkg:pypi/a@1"] == ["pkg:pypi/b@1", "pkg:pypi/b@2"]
    assert found == sbom.bill(lock, "9")
