"""A program that only looks like spark-submit, and one sealed batch, for tests of operators that start it.

The real one is in ``test_end_to_end.py``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator

if TYPE_CHECKING:
    from tests.airflow.conftest import TestLake

SLOT = "shop"

#: Records how it was called, then does what ``BEHAVIOUR`` says.
_FAKE = """\
#!{python}
import json, os, sys
arguments = sys.argv[1:]
properties = arguments[arguments.index("--properties-file") + 1]
job_uri = arguments[arguments.index("--job-uri") + 1]
with open("{home}/seen.json", "w") as file:
    json.dump({{
        "arguments": arguments,
        "properties": open(properties).read(),
        "mode": os.stat(properties).st_mode,
        "job": open(job_uri.removeprefix("file://")).read(),
        "python": os.environ.get("PYSPARK_PYTHON"),
    }}, file)
behaviour = json.load(open("{home}/behaviour.json"))
if behaviour["result"] is not None:
    result = job_uri.removeprefix("file://").removesuffix(".json") + ".result.json"
    with open(result, "w") as file:
        json.dump(behaviour["result"], file)
if behaviour["checkpoint"]:
    sys.path[:0] = {path}
    from tests.airflow.conftest import TestLake
    TestLake(behaviour["lake"]).record(*behaviour["checkpoint"])
print("what spark prints")
sys.exit(behaviour["status"])
"""


class Workshop:
    """One sealed batch, and a spark-submit that can be told what to do."""

    def __init__(self, home: Path, lake: TestLake) -> None:
        self.home, self.lake = home, lake
        self.staging_uri = (home / "staging").as_uri()
        self.binary = home / "spark-submit"
        path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
        self.binary.write_text(_FAKE.format(python=sys.executable, home=home, path=path))
        self.binary.chmod(0o755)
        self.manifest = Manifest(
            slot_name=SLOT,
            system_identifier="7",
            timeline=1,
            database="app",
            publication_names=("p",),
            start_lsn=Lsn.parse("0/10"),
            end_lsn=Lsn.parse("0/20"),
            tables=(
                Table(
                    relation_oid=1,
                    schema_name="public",
                    table_name="orders",
                    versions=(),
                    counts=Counts(inserts=3, deletes=1),
                ),
            ),
        )
        self.seal()
        self.behave()

    def seal(self, **changed: Any) -> None:
        """Put the manifest into the staging area, with other fields if wanted, and tell of it."""
        self.manifest = dataclasses.replace(self.manifest, **changed)
        relative = layout.manifest_path(
            SLOT, self.manifest.start_lsn, self.manifest.end_lsn, self.manifest.batch_id
        )
        self.manifest_path = self.home / "staging" / relative
        self.manifest_path.parent.mkdir(parents=True, exist_ok=True)
        self.manifest_path.write_text(self.manifest.to_json())
        self.batch: dict[str, Any] = dict(
            batch_xcom(self.manifest, layout.join(self.staging_uri, relative))
        )

    def behave(
        self,
        *,
        status: int = 0,
        result: dict[str, Any] | None = None,
        checkpoint: bool = True,
        tables: dict[str, int] | None = None,
    ) -> None:
        """Say what the program does.

        :param tables: OIDs of the tables, by their names, that the lake's checkpoint says have the batch.
        """
        recorded = [SLOT, "0/20", self.manifest.batch_id, tables or {}]
        behaviour = {
            "status": status,
            "result": result,
            "checkpoint": recorded if checkpoint else None,
            "lake": self.lake.properties,
        }
        (self.home / "behaviour.json").write_text(json.dumps(behaviour))

    def operator(self, **changed: Any) -> PgoutputApplyOperator:
        arguments = {
            "task_id": "apply",
            "batch": self.batch,
            "slot_name": SLOT,
            "staging_uri": self.staging_uri,
            "namespace": "shop",
            "spark_binary": str(self.binary),
            "name": "test",
        }
        return PgoutputApplyOperator(**(arguments | changed))

    @property
    def was_started(self) -> bool:
        return (self.home / "seen.json").exists()

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "seen.json").read_text())
        return found
