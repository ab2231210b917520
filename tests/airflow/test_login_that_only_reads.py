"""A login of a catalog that may only read: the first stage task says so, and makes no slot."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyarrow import fs
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from quickstart.jars import spark_home
from tests.lakes.programs import Unavailable
from tests.lakes.servers import BUCKET, rest_catalog, s3proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.lakes.servers import RestLogin

    Shop = psycopg.Connection[tuple[Any, ...]]


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


def stage(tmp_path: Path, namespace: str) -> PgoutputStageOperator:
    return PgoutputStageOperator(
        task_id="stage",
        slot_name="stage_test",
        publication_names=["shop"],
        staging_uri=(tmp_path / "staging").as_uri(),
        namespace=namespace,
    )


@pytest.fixture
def shop(source: psycopg.Connection[tuple[Any, ...]]) -> Iterator[Shop]:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("CREATE PUBLICATION shop FOR TABLE orders")
    yield source
    source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.mark.slow
def test_the_first_stage_task_finds_it_out_before_it_makes_a_slot(
    catalog: RestLogin,
    shop: Shop,
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    task_context: Any,
) -> None:
    where = {"type": "rest", "oauth2-server-uri": f"{catalog.url}/v1/oauth/tokens"}

    def staged(client: str, namespace: str) -> Any:
        login = {"login": client, "password": catalog.secret}
        connection = {"conn_type": "iceberg", "host": catalog.url, **login, "extra": where}
        set_connection("iceberg_default", connection)
        return stage(tmp_path, namespace).execute(task_context)

    credential = f"{catalog.client}:{catalog.secret}"
    writer = load_catalog("lake", **where, uri=catalog.url, credential=credential)
    writer.create_namespace("there")

    def staged_with_header(client: str, namespace: str) -> Any:
        header = {"header.Authorization": f"Bearer client-credentials-token:sub={client}"}
        extra = {"type": "rest", "auth": {"type": "noop"}, **header}
        connection = {"conn_type": "iceberg", "host": catalog.url, "extra": extra}
        set_connection("iceberg_default", connection)
        return stage(tmp_path, namespace).execute(task_context)

    for namespace in ("there", "missing", "of_others.missing"):
        with pytest.raises(AirflowFailException, match=r"ForbiddenError.*No slot was made"):
            staged(catalog.reader, namespace)
        assert shop.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
    with pytest.raises(AirflowFailException, match=r"ForbiddenError.*No slot was made"):
        staged_with_header(catalog.reader, "missing")
    assert writer.list_namespaces() == [("there",)]

    assert staged(catalog.client, "there")["slot_name"] == "stage_test"
    assert writer.list_tables("there") == []
    assert staged(catalog.client, "of_others.missing")["slot_name"] == "stage_test"
    assert writer.namespace_exists(("of_others", "missing"))


def test_a_sql_catalog_whose_login_may_only_read_is_found_out(
    shop: Shop,
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The role may only read the catalog's tables. The run leaves nothing there."""
    where = {"type": "sql", "warehouse": (tmp_path / "warehouse").as_uri()}
    at = f"127.0.0.1:{shop.info.port}/{shop.info.dbname}"
    owner = f"postgresql+psycopg://{shop.info.user}:{shop.info.password}@{at}"
    load_catalog("lake", **where, uri=owner)
    shop.execute("CREATE ROLE of_catalog LOGIN PASSWORD 'of catalog'")
    try:
        shop.execute("GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO of_catalog")
        host = f"postgresql+psycopg://of_catalog:of%20catalog@{at}"
        set_connection("iceberg_default", {"conn_type": "iceberg", "host": host, "extra": where})
        with pytest.raises(AirflowFailException, match=r"LakeDenied.*No slot was made"):
            stage(tmp_path, "missing").execute(task_context)
        assert shop.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []

        needed = [f"{each} ON iceberg_tables" for each in ("INSERT", "UPDATE")]
        for right in ("INSERT ON iceberg_namespace_properties", *needed):
            with pytest.raises(AirflowFailException, match=r"LakeDenied.*No slot was made"):
                stage(tmp_path, "missing").execute(task_context)
            shop.execute(f"GRANT {right} TO of_catalog")
        assert stage(tmp_path, "missing").execute(task_context)["slot_name"] == "stage_test"
        assert "The login cannot drop a table" in caplog.text
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            assert shop.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    finally:
        shop.execute("DROP OWNED BY of_catalog")
        shop.execute("DROP ROLE of_catalog")


@pytest.mark.slow
def test_a_warehouse_that_the_keys_do_not_open_is_found_out(
    shop: Shop,
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    task_context: Any,
) -> None:
    """No object stays in it."""
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        try:
            store = stack.enter_context(s3proxy(Path(stack.enter_context(home))))
        except Unavailable as error:
            pytest.skip(str(error))
        where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **store.for_iceberg()}

        def staged(**other: str) -> Any:
            extra = {**where, "warehouse": f"s3://{BUCKET}/warehouse", **other}
            set_connection("iceberg_default", {"conn_type": "iceberg", "extra": extra})
            return stage(tmp_path, "missing").execute(task_context)

        for other, refusal in (
            ({"s3.secret-access-key": "wrong"}, r"LakeDenied.*in the warehouse.*No slot was made"),
            ({"s3.access-key-id": "wrong"}, r"LakeDenied.*in the warehouse.*No slot was made"),
            (
                {"warehouse": "s3://misspelt/warehouse"},
                "ConfigurationError.*bucket of the warehouse",
            ),
        ):
            with pytest.raises(AirflowFailException, match=refusal):
                staged(**other)
            assert shop.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
        assert staged()["slot_name"] == "stage_test"
        found = store.for_python().get_file_info(fs.FileSelector(BUCKET, recursive=True))
        assert [each.path for each in found if each.is_file] == []
