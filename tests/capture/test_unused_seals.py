"""A sealed copy is not used when something happened since that no stream tells.

An attempt dies when it has sealed its tables, and what the cases say happens before the next attempt.
What is not here: that seals are used (``test_sealed_copies.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.copy import plan as copy_plan
from airflow_provider_pgoutput.capture.copy import stage
from airflow_provider_pgoutput.capture.server import PostgresSource
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from tests.capture.staging.test_sealed_copies import KILLED, fold, in_source, seals

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source


def partitioned(name: str) -> tuple[str, ...]:
    return (
        f"CREATE TABLE {name}(a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
        f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (a)",
        f"CREATE TABLE {name}_11 PARTITION OF {name}_1 FOR VALUES FROM (0) TO (50)",
    )


def plain(name: str) -> tuple[str, ...]:
    return (f"CREATE TABLE {name}(a int PRIMARY KEY, b text)",)


def in_schema(name: str) -> tuple[str, ...]:
    return (f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.t(a int PRIMARY KEY, b text)")


#: By the name of a table: how it is made, and what no stream tells of it between two attempts.
UNSEEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "public.untouched": (plain("untouched"), ("VACUUM ANALYZE untouched",)),
    "public.attached": (
        partitioned("attached"),
        (
            "CREATE TABLE brought(a int PRIMARY KEY, b text)",
            "INSERT INTO brought VALUES (150, 'brought')",
            "ALTER TABLE attached ATTACH PARTITION brought FOR VALUES FROM (100) TO (200)",
        ),
    ),
    "public.leaf": (
        partitioned("leaf"),
        (
            "ALTER TABLE leaf_1 DETACH PARTITION leaf_11",
            "UPDATE leaf_11 SET b = 'unseen'",
            "ALTER TABLE leaf_1 ATTACH PARTITION leaf_11 FOR VALUES FROM (0) TO (50)",
        ),
    ),
    "public.parent": (
        partitioned("parent"),
        (
            "ALTER TABLE parent DETACH PARTITION parent_1",
            "UPDATE parent_11 SET b = 'unseen'",
            "ALTER TABLE parent ATTACH PARTITION parent_1 FOR VALUES FROM (0) TO (100)",
        ),
    ),
    "public.detached": (
        partitioned("detached"),
        ("ALTER TABLE detached DETACH PARTITION detached_1",),
    ),
    "moved.t": (
        (*in_schema("moved"), "CREATE SCHEMA elsewhere"),
        (
            "ALTER TABLE moved.t SET SCHEMA elsewhere",
            "UPDATE elsewhere.t SET b = 'unseen'",
            "ALTER TABLE elsewhere.t SET SCHEMA moved",
        ),
    ),
    "dropped.t": (
        in_schema("dropped"),
        (
            "ALTER PUBLICATION dropped DROP TABLES IN SCHEMA dropped",
            "UPDATE dropped.t SET b = 'unseen'",
            "ALTER PUBLICATION dropped ADD TABLES IN SCHEMA dropped",
        ),
    ),
    "public.filtered": (
        plain("filtered"),
        (
            "ALTER PUBLICATION filtered SET TABLE filtered WHERE (a < 3)",
            "UPDATE filtered SET b = 'unseen'",
            "ALTER PUBLICATION filtered SET TABLE filtered",
        ),
    ),
    "public.listed": (
        plain("listed"),
        (
            "ALTER PUBLICATION listed SET TABLE listed (a)",
            "UPDATE listed SET b = 'unseen'",
            "ALTER PUBLICATION listed SET TABLE listed",
        ),
    ),
    "public.rewritten": (
        plain("rewritten"),
        ("ALTER TABLE rewritten ALTER b TYPE text USING b || ' computed'",),
    ),
    "public.renewed": (
        plain("renewed"),
        ("ALTER TABLE renewed DROP b", "ALTER TABLE renewed ADD b text"),
    ),
    "public.relabelled": (
        (
            "CREATE TYPE label AS ENUM ('sealed', 'another')",
            "CREATE DOMAIN labelled AS label",
            "CREATE TABLE relabelled(a int PRIMARY KEY, b labelled)",
        ),
        ("ALTER TYPE label RENAME VALUE 'sealed' TO 'relabelled'",),
    ),
}


def test_a_seal_is_not_used_when_something_happened_that_no_stream_tells(source: Source) -> None:
    publications = []
    for name, (made, _) in UNSEEN.items():
        schema, _, table_name = name.partition(".")
        one = table_name if schema == "public" else schema
        what = f"TABLE {name}" if schema == "public" else f"TABLES IN SCHEMA {schema}"
        source.execute(
            *made,
            f"INSERT INTO {name} SELECT g, 'sealed' FROM generate_series(1, 20) g",
            f"CREATE PUBLICATION {one} FOR {what} WITH (publish_via_partition_root)",
        )
        publications.append(one)
    options: dict[str, Any] = {"publication_names": publications}
    assert source.stage_in_process(f"stage.after_copied_table:{len(UNSEEN)}", **options) == KILLED
    assert len(seals(source)) == len(UNSEEN)
    for _, between in UNSEEN.values():
        source.execute(*between)
    manifest = source.stage(**options)
    wrong = [
        name for name in UNSEEN if fold(source, [manifest], name, "a") != in_source(source, name)
    ]
    assert wrong == []
    taken_over = [each.name for each in manifest.tables if each.copy_lsn == str(manifest.start_lsn)]
    assert taken_over == ["public.untouched"]


@pytest.mark.parametrize(
    ("publication", "between"),
    [
        (
            "FOR ALL TABLES",
            ("ALTER TABLE t SET UNLOGGED", "UPDATE t SET b = 'unseen'", "ALTER TABLE t SET LOGGED"),
        ),
        (
            "FOR TABLE t",
            (
                "ALTER PUBLICATION q SET (publish = 'insert')",
                "UPDATE t SET b = 'unseen'",
                "ALTER PUBLICATION q SET (publish = 'insert, update, delete, truncate')",
            ),
        ),
    ],
    ids=["unlogged", "other operations"],
)
def test_a_seal_is_not_used_when_operations_were_not_published(
    source: Source, publication: str, between: tuple[str, ...]
) -> None:
    source.execute(
        "INSERT INTO t SELECT g, 't' FROM generate_series(1, 20) g",
        "DROP PUBLICATION p",
        f"CREATE PUBLICATION q {publication}",
    )
    options: dict[str, Any] = {"publication_names": ["q"]}
    assert source.stage_in_process("stage.after_copied_table", **options) == KILLED
    assert len(seals(source)) == 1
    source.execute(*between)
    manifest = source.stage(**options)
    assert fold(source, [manifest], "public.t", "a") == in_source(source, "public.t")


def test_comparing_a_table_waits_for_no_lock(source: Source) -> None:
    """A copy holds locks that a migration may wait for, and what is asked later waits behind that."""
    source.execute(
        *partitioned("m"), "CREATE PUBLICATION q FOR TABLE m WITH (publish_via_partition_root)"
    )
    with (
        psycopg.connect(source.conninfo) as migration,
        sessions.connect(source.conninfo) as session,
    ):
        server = PostgresSource(
            source.request(publication_names=("p", "q")),
            StagingArea(str(source.staging)),
            session,
            read_server(session, source.reader),
        )
        tables = server.read_tables()
        assert [each.name for each in tables] == ["public.m", "public.t"]
        migration.execute("LOCK TABLE m, t IN ACCESS EXCLUSIVE MODE")
        session.execute("SET lock_timeout = '100ms'")
        assert set(copy_plan.read_states(session, ("p", "q"), tables)) == {
            each.relation_oid for each in tables
        }


def test_columns_that_took_other_names_while_a_table_was_read_are_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is rewritten for that, and the server takes names for those of now, whatever the snapshot."""
    source.execute("INSERT INTO t VALUES (1, 'old')")
    real: Any = vars(stage)["read_plan"]
    changed: list[Any] = []

    def after_a_migration(*given: Any, **named: Any) -> Any:
        plan = real(*given, **named)
        if not changed:
            changed.append(True)
            source.execute(
                "ALTER TABLE t RENAME b TO c", "ALTER TABLE t ADD COLUMN b text DEFAULT 'new'"
            )
        return plan

    monkeypatch.setattr(stage, "read_plan", after_a_migration)
    manifest = source.stage()
    assert "given other partitions or columns" in caplog.text
    assert source.copied(manifest, "public.t") == [{"a": 1, "c": "old", "b": "new"}]


def test_what_alter_type_did_while_a_table_was_read_is_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was read before looks as before, and the server sends no row for that."""
    source.execute(
        "CREATE TYPE label AS ENUM ('old')",
        "CREATE TYPE pair AS (a int)",
        "ALTER TABLE t ADD c label[], ADD d pair",
        "INSERT INTO t VALUES (1, 'b', '{old}', '(1)')",
    )
    real: Any = vars(stage)["read_type_definitions"]
    changes = iter(
        (
            ("label", "ADD VALUE 'more' BEFORE 'old'"),
            ("label", "RENAME VALUE 'old' TO 'new'"),
            ("pair", "ADD ATTRIBUTE b int"),
        )
    )

    def after_a_migration(*given: Any) -> Any:
        if change := next(changes, None):
            source.execute(f"ALTER TYPE {change[0]} {change[1]}")
        return real(*given)

    monkeypatch.setattr(stage, "read_type_definitions", after_a_migration)
    source.stage()
    assert "copied again" not in caplog.text
    source.drop_slot(source.slot_name)
    manifest = source.stage()
    assert caplog.text.count("a type of its columns was altered since") == 2
    assert source.copied(manifest, "public.t") == [{"a": 1, "b": "b", "c": ["new"], "d": "(1,)"}]
