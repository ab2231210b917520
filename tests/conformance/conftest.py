"""The scenarios of a group run once per test run, when a test asks for one; and a table of a test's own."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.groups import ONE_BATCH, VARIANTS, GroupRun, run_group
from tests.conformance.one_table import Lake, begun
from tests.conformance.pipeline import Pipeline
from tests.conformance.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.postgres import EmbeddedPostgres


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def group_run(
    request: pytest.FixtureRequest,
    postgres_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Scenario], GroupRun]:
    """What became of the group of a scenario. Only selected scenarios run, in the selected variants."""
    version = request.config.getoption("--postgres-version")
    groups: dict[str, list[Scenario]] = {}
    variants: dict[str, set[str]] = {}
    for item in request.session.items:
        callspec: Any = getattr(item, "callspec", None)
        scenario = callspec and callspec.params.get("scenario")
        if isinstance(scenario, Scenario):
            variant = callspec.params.get("variant", ONE_BATCH)
            variants.setdefault(scenario.group, set()).add(variant)
            chosen = groups.setdefault(scenario.group, [])
            if scenario not in chosen and scenario.least_version <= version:
                chosen.append(scenario)
    runs: dict[str, GroupRun | BaseException] = {}

    def get(scenario: Scenario) -> GroupRun:
        if scenario.least_version > version:
            pytest.skip(f"this is about PostgreSQL {scenario.least_version}")
        name = scenario.group
        if name not in runs:
            folder = tmp_path_factory.mktemp(f"staging-{name}")
            try:
                runs[name] = run_group(
                    name,
                    groups[name],
                    [each for each in VARIANTS if each in variants[name]],
                    postgres_server,
                    spark,
                    lake_catalog_properties,
                    folder,
                )
            except Exception as error:
                runs[name] = error
                raise
        run = runs[name]
        if isinstance(run, BaseException):
            pytest.fail(f"the group {name} did not run to its end: {run}")
        return run

    return get


@pytest.fixture
def pipeline(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Pipeline:
    """A pipeline of the test's own; its database is empty, and nothing is captured yet."""
    name = re.sub(r"\W+", "_", request.node.name).removeprefix("test_").strip("_")
    name = f"{name[:40]}_{next(_numbers)}"
    return Pipeline(
        conninfo=postgres_database,
        slot_name=f"s_{name}",
        publication_names=("p",),
        namespace=f"n_{name}",
        staging=tmp_path,
        catalog_properties=lake_catalog_properties,
        spark=spark,
    )


@pytest.fixture
def lake(pipeline: Pipeline) -> Lake:
    return begun(pipeline)
