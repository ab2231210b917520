"""A release of the ADBC driver that pip does not choose, because it is slow, stages the same rows.

It is installed into a folder of its own, which comes first on the path of another process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import errors

from airflow_provider_pgoutput.batch.manifest import Manifest
from tests.capture.pipeline_support import PROGRAM, checkpoint_of, process_body
from tests.capture.types.special_values import VALUES
from tests.lakes.programs import Unavailable, python_with

if TYPE_CHECKING:
    from pathlib import Path

    from tests.capture.pipeline_support import Source

#: The newest that the package index has.
_DRIVER = "1.13.0"


@pytest.fixture
def packages() -> Path:
    try:
        programs = python_with(f"adbc-{_DRIVER}", f"adbc-driver-postgresql=={_DRIVER}")
    except Unavailable as error:
        pytest.skip(str(error))
    (found,) = programs.parent.glob("lib/python3*/site-packages")
    return found


@pytest.mark.slow
def test_a_slow_driver_stages_the_same_rows_and_warns_once(
    source: Source, packages: Path, tmp_path: Path
) -> None:
    make_table_of_all_types(source)
    of_default = source
    of_forced = dataclasses.replace(source, slot_name="forced", staging=tmp_path / "forced")
    try:
        copies = of_default.stage(), stage_with(packages, of_forced)
        rows = [
            repr(each.copied(manifest, "public.every"))
            for each, manifest in zip((of_default, of_forced), copies, strict=True)
        ]
        assert rows[0] == rows[1]
        assert "'id': 1," in rows[0]

        source.execute("UPDATE every SET id = id + 1000", "DELETE FROM every WHERE id > 1003")
        changes = (
            of_default.stage(checkpoint=checkpoint_of(copies[0])),
            stage_with(packages, of_forced, checkpoint=checkpoint_of(copies[1])),
        )
        rows = [
            repr(each.changes(manifest, "public.every"))
            for each, manifest in zip((of_default, of_forced), changes, strict=True)
        ]
        assert rows[0] == rows[1]
        assert "'id': 1001," in rows[0]
    finally:
        source.drop_slot(of_forced.slot_name)


def make_table_of_all_types(source: Source) -> None:
    """Make the published table ``every``: a column for each type of the server, with its odd values."""
    names = [name for name in VALUES if name != "xml" or _has_xml(source)]
    types = {name: '"char"' if name == "char" else name for name in names}
    columns = ", ".join(f"v_{name} {type_sql}" for name, type_sql in types.items())
    source.execute(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    inserts = [
        f"INSERT INTO every (id, v_{name}) SELECT o, e::{type_sql}"
        f" FROM jsonb_array_elements_text({_literal(VALUES[name])}) WITH ORDINALITY AS x(e, o)"
        f" ON CONFLICT (id) DO UPDATE SET v_{name} = EXCLUDED.v_{name}"
        for name, type_sql in types.items()
    ]
    source.execute(*inserts, "ALTER PUBLICATION p ADD TABLE every")


def _literal(values: list[str]) -> str:
    text = json.dumps(values).replace("'", "''")
    return f"'{text}'::jsonb"


def _has_xml(source: Source) -> bool:
    try:
        source.execute("SELECT '<a/>'::xml")
    except errors.FeatureNotSupported:
        return False
    return True


def stage_with(packages: Path, source: Source, **options: Any) -> Manifest:
    """Stage a batch in a process that has the driver of a folder, and look at what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(process_body(source.request(**options))),
        env={**os.environ, "PYTHONPATH": str(packages)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count(f"adbc-driver-postgresql {_DRIVER} takes 2 to 5 times") == 1
    newest = source.manifests()[-1]
    path = source.staging / source.slot_name / "manifests" / newest
    return Manifest.from_json(path.read_bytes())
