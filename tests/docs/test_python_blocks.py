"""Every Python block of the pages runs, alone, as somebody who copies it would run it.

A block with a DAG is loaded as a DAG file, by Airflow: its operators are made, not run. Any other one is
executed with what its page says it is given. What is not here: all else on the pages (``test_pages.py``).
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.jobs import ApplyJob
from quickstart.spark import LocalLake

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^( *)```(?:python|py)\b[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def python_blocks() -> dict[str, str]:
    """The blocks of all pages, by ``page:number``."""
    return {
        f"{page.relative_to(ROOT)}:{number}": textwrap.dedent(found[2])
        for page in PAGES
        for number, found in enumerate(_BLOCK.finditer(page.read_text()), start=1)
    }


BLOCKS = python_blocks()
WITH_DAG = {name: block for name, block in BLOCKS.items() if "DAG(" in block}
#: They need something to work on; each has a test of its own below.
OTHERS = {
    "docs/tutorial/first_pipeline.md:2",
    "docs/tutorial/first_pipeline.md:3",
    "docs/internals/protocol.md:1",
    # tests/apply/test_chosen_columns.py
    "docs/reference/tables.md:2",
    # tests/apply/test_shared_tables.py
    "docs/how-to/shared_tables.md:2",
    "docs/tutorial/demo.md:1",
}


def run(name: str, block: str, **given: Any) -> dict[str, Any]:
    """Execute a block; what it left."""
    namespace: dict[str, Any] = {"__name__": "page", **given}
    exec(compile(block, name, "exec"), namespace)  # noqa: S102
    return namespace


def test_every_block_is_run_by_a_test() -> None:
    assert len(WITH_DAG) >= 8
    assert BLOCKS.keys() == WITH_DAG.keys() | OTHERS


def load_all(block: str, folder: Path) -> dict[str, Any]:
    """The DAGs of a block by their names, by way of a DAG file."""
    from airflow.dag_processing.dagbag import DagBag

    (folder / "block.py").write_text(block)
    bag = DagBag(dag_folder=str(folder))
    assert bag.import_errors == {}
    assert bag.dags
    return dict(bag.dags)


def load(block: str, folder: Path) -> Any:
    """The only DAG of a block."""
    (dag,) = load_all(block, folder).values()
    return dag


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_DAG)
def test_a_dag_can_be_loaded(airflow_home: Path, tmp_path: Path, name: str) -> None:
    for dag in load_all(WITH_DAG[name], tmp_path).values():
        assert len(dag.tasks) > 0
        # Airflow's default is none, and the pages say that tasks are retried.
        assert [task.task_id for task in dag.tasks if not task.retries] == []


def test_a_loop_makes_a_dag_for_each_pipeline(airflow_home: Path, tmp_path: Path) -> None:
    dags = load_all(WITH_DAG["docs/how-to/many_pipelines.md:1"], tmp_path)
    # Airflow reads them in no order that it promises.
    assert sorted(dags) == ["billing_to_lake", "shop_to_lake"]
    stage = [each.get_task("pgoutput_to_iceberg.stage") for each in dags.values()]
    for names in ("slot_name", "postgres_conn_id"):
        assert len({getattr(each, names) for each in stage}) == len(dags)
    apply = [each.get_task("pgoutput_to_iceberg.apply") for each in dags.values()]
    assert len({each.namespace for each in apply}) == len(dags)
    assert {each.pool for each in apply} == {"spark"}


@pytest.mark.slow
def test_the_options_of_the_tables_are_taken(airflow_home: Path, tmp_path: Path) -> None:
    from airflow_provider_pgoutput.tasks.plan_options import plan_fields, table_options

    dag = load(WITH_DAG["docs/reference/tables.md:1"], tmp_path)
    task = dag.get_task("pgoutput_to_iceberg.apply")
    plan = ApplyJob(
        manifest_uri="m",
        staging_uri="s",
        catalog_name="lake",
        namespace=task.namespace,
        table_options=table_options(task.table_options),
        metadata_columns=tuple(task.metadata_columns),
        **plan_fields(task.plan_options),
    )
    plan.check()
    assert task.current_views is True
    assert plan.target_name("sales", "orders") == "orders_of_sales"
    assert plan.target_name("sales", "others") == "sales__others"
    assert plan.target_name("public", "orders") == "orders"


def test_the_dag_of_the_readme_is_the_whole_pipeline() -> None:
    assert [name for name in WITH_DAG if name.startswith("README")] == ["README.md:1"]
    assert "pgoutput_to_iceberg(" in WITH_DAG["README.md:1"]


def test_what_the_readme_says_is_what_the_tutorial_does() -> None:
    """So ``make readme``, which follows the tutorial, runs the README's DAG, too. Comments may differ."""
    (tutorial,) = (text for name, text in WITH_DAG.items() if "first_pipeline" in name)
    assert ast.dump(ast.parse(WITH_DAG["README.md:1"])) == ast.dump(ast.parse(tutorial))
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorial" / "first_pipeline.md"]
    for said in ('pip install "airflow-provider-pgoutput[spark]"', "Java 17 or newer"):
        assert all(said in page.read_text(encoding="utf-8") for page in pages), said


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_the_tutorial_reads_a_table_of_its_lake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """``make readme`` runs the block on a table that the pipeline made."""
    name = f"docs/tutorial/first_pipeline.md:{number}"
    block = BLOCKS[name].replace("/tmp/lake", str(tmp_path))  # noqa: S108
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    catalog = load_catalog("lake", type="sql", **where)
    catalog.create_namespace("shop")
    rows = pa.table({"id": [1], "customer": ["somebody"]})
    catalog.create_table("shop.orders", schema=rows.schema).append(rows)
    run(name, block)
    assert "somebody" in capsys.readouterr().out


def test_the_decoder_decodes_what_a_server_sent(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.capture.pgoutput import support

    bodies = support.newest_bodies("iud")
    name = "docs/internals/protocol.md:1"
    left = run(name, BLOCKS[name], chunks=[support.chunk_of(bodies)], start_lsn=None, end_lsn=None)
    assert left["decoder"].transactions > 0
    assert "Relation(" in capsys.readouterr().out


def test_pyiceberg_reads_the_demos_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

    name = "docs/tutorial/demo.md:1"
    lake = LocalLake(tmp_path / ".quickstart" / "demo" / "lake").create()
    catalog = load_catalog("lake", **lake.pyiceberg_properties())
    catalog.create_namespace("shop")
    rows = pa.table({"bid": [7]})
    catalog.create_table("shop.pgbench_branches", schema=rows.schema).append(rows)
    catalog.close()
    run(name, BLOCKS[name].replace("/path/to/checkout", str(tmp_path)))
    assert "bid: [[7]]" in capsys.readouterr().out
