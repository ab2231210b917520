"""A REST catalog whose login may only read: the first stage task says so, and makes no slot."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from quickstart.jars import spark_home
from tests.lakes.programs import Unavailable
from tests.lakes.servers import rest_catalog, s3proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.lakes.servers import RestLogin


@pytest.fixture
def catalog() -> Iterator[RestLogin]:
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        folder = Path(stack.enter_context(home))
        try:
            store = stack.enter_context(s3proxy(folder))
            found = stack.enter_context(rest_catalog(folder, store, spark_home()))
        except Unavailable as error:
            pytest.skip(str(error))
        yield found


@pytest.mark.slow
def test_the_first_stage_task_finds_it_out_before_it_makes_a_slot(
    catalog: RestLogin,
    source: psycopg.Connection[tuple[Any, ...]],
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    task_context: Any,
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("CREATE PUBLICATION shop FOR TABLE orders")
    where = {"type": "rest", "oauth2-server-uri": f"{catalog.url}/v1/oauth/tokens"}

    def stage(client: str, namespace: str) -> Any:
        login = {"login": client, "password": catalog.secret}
        connection = {"conn_type": "iceberg", "host": catalog.url, **login, "extra": where}
        set_connection("iceberg_default", connection)
        operator = PgoutputStageOperator(
            task_id="stage",
            slot_name="stage_test",
            publication_names=["shop"],
            staging_uri=(tmp_path / "staging").as_uri(),
            namespace=namespace,
        )
        return operator.execute(task_context)

    credential = f"{catalog.client}:{catalog.secret}"
    writer = load_catalog("lake", **where, uri=catalog.url, credential=credential)
    writer.create_namespace("there")
    for namespace in ("there", "missing", "of_others.missing"):
        with pytest.raises(AirflowFailException, match=r"ForbiddenError.*No slot was made"):
            stage(catalog.reader, namespace)
        assert source.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
    assert writer.list_namespaces() == [("there",)]

    assert stage(catalog.client, "there")["slot_name"] == "stage_test"
    assert writer.list_tables("there") == []
    assert stage(catalog.client, "of_others.missing")["slot_name"] == "stage_test"
    assert writer.namespace_exists(("of_others", "missing"))
    source.execute("SELECT pg_drop_replication_slot('stage_test')")
