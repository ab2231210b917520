"""One wrong field here would stop ``airflow providers list`` for every provider of an installation."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

import airflow_provider_pgoutput
from airflow_provider_pgoutput.provider_info import get_provider_info

_SCHEMA = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())


def _modules(info: dict[str, Any]) -> list[str]:
    parts = (part for name in ("hooks", "operators", "sensors", "triggers") for part in info[name])
    return [module for part in parts for module in part["python-modules"]]


def test_the_metadata_fits_airflows_runtime_schema() -> None:
    jsonschema.Draft7Validator(_SCHEMA).validate(get_provider_info())


def test_the_schema_would_refuse_a_wrong_field() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**get_provider_info(), "hooks": "not a list"}, _SCHEMA)


def test_the_version_is_the_packages() -> None:
    assert get_provider_info()["versions"] == [airflow_provider_pgoutput.__version__]


@pytest.mark.parametrize("module", _modules(get_provider_info()))
def test_every_module_it_names_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_every_public_door_is_named() -> None:
    root = Path(airflow_provider_pgoutput.__file__).parent
    named = set(_modules(get_provider_info()))
    public = {
        f"airflow_provider_pgoutput.{path.parent.name}.{path.stem}"
        for room in ("hooks", "operators", "sensors", "triggers")
        for path in (root / room).glob("*.py")
        if any(
            line.startswith("class Pgoutput") and line.split("(")[0].endswith(suffix)
            for line in path.read_text().splitlines()
            for suffix in ("Hook", "Operator", "Sensor", "Trigger")
        )
    }
    assert public == named


def test_airflow_finds_the_provider_by_its_entry_point(airflow_home: Path) -> None:
    from airflow.providers_manager import ProvidersManager

    providers = ProvidersManager().providers
    assert "airflow-provider-pgoutput" in providers
    assert providers["airflow-provider-pgoutput"].version == airflow_provider_pgoutput.__version__


def test_the_metadata_imports_nothing_heavy() -> None:
    code = (
        "import sys; from airflow_provider_pgoutput.provider_info import get_provider_info;"
        "get_provider_info();"
        "print(*sorted({'airflow', 'numpy', 'pyarrow', 'pyspark', 'psycopg'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []
