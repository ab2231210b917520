"""Tables that the stage task sets aside: what is staged of them and of the others, and how they come back."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.passed_over import PassedOver, since_by_oid, to_text
from airflow_provider_pgoutput.batch.set_aside import (
    TableRow,
    set_aside_tables,
    staged_without,
)
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    MissingPrivilege,
    PgoutputError,
    SnapshotLost,
    TableRefused,
    ValueRefused,
)
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

ASIDE: dict[str, Any] = {"on_table_refused": "set_aside"}


class Lake:
    """The checkpoint of a lake that has the batches that it was given."""

    def __init__(self) -> None:
        self.rows: list[TableRow] = []
        self.texts: list[str] = []
        self.checkpoint: Checkpoint | None = None

    def take(self, manifest: Manifest) -> Checkpoint:
        """Apply a batch, as the checkpoint table says it."""
        assert Manifest.from_json(manifest.to_json()) == manifest
        lsns = manifest.start_lsn, manifest.end_lsn
        for table in manifest.tables:
            target = f"lake.{table.name}"
            self.rows.append(TableRow(table.relation_oid, table.name, *lsns, None, target))
        for entry in manifest.passed_over:
            if (refusal := staged_without(entry)) is not None:
                row = TableRow(entry.relation_oid, entry.table_name, *lsns, refusal)
                self.rows.append(row)
        if text := to_text(manifest.passed_over):
            self.texts.append(text)
        found, before = checkpoint_with_shapes(manifest), self.checkpoint
        self.checkpoint = dataclasses.replace(
            found,
            tables={row.relation_oid: row.table_name for row in self.rows},
            shapes={**(before.shapes if before else {}), **found.shapes},
            passed_over=since_by_oid(self.texts),
            set_aside=set_aside_tables(self.rows),
        )
        return self.checkpoint

    @property
    def aside(self) -> dict[str, str]:
        """By table that is set aside: the class of its error."""
        assert self.checkpoint is not None
        found = self.checkpoint.set_aside.values()
        assert all(each.needs_copy for each in found)
        return {each.table_name.removeprefix("public."): each.refusal.error for each in found}


def rows(source: Source, manifest: Manifest, name: str) -> list[Any]:
    """Column a of the changes that apply sees; none if the batch does not have the table."""
    found = [each for each in manifest.tables if each.name == f"public.{name}"]
    if not found:
        return []
    until = found[0].until_lsn
    changes = source.changes(manifest, f"public.{name}")
    kept = [e for e in changes if until is None or e["commit_lsn"] < Lsn.parse(until)]
    assert len(kept) == found[0].counts.changes
    return [each["a"] for each in kept]


def entries(manifest: Manifest) -> dict[str, PassedOver]:
    return {e.table_name.removeprefix("public."): e for e in manifest.passed_over if e.since_lsn}


def sales(names: Iterable[str]) -> list[str]:
    return [f"INSERT INTO {name} VALUES (2, 2)" for name in sorted(names)]


#: What is done to a table (a int PRIMARY KEY, d numeric(5, 2)) that has a row 1; how many changes come after
#: the first that is refused; the error.
TROUBLE: dict[str, tuple[tuple[str, ...], int, str]] = {
    "value": (
        ("INSERT INTO value VALUES (3, 'NaN')", "INSERT INTO value VALUES (4, 4)"),
        2,
        "Value",
    ),
    "value_in_transaction": (
        (
            "BEGIN",
            "INSERT INTO value_in_transaction VALUES (3, 3)",
            "INSERT INTO value_in_transaction VALUES (4, 'NaN')",
            "COMMIT",
        ),
        2,
        "Value",
    ),
    "retyped": (
        ("ALTER TABLE retyped ALTER d TYPE numeric(7, 3)", "INSERT INTO retyped VALUES (3, 'NaN')"),
        1,
        "Value",
    ),
    "key_of_full": (
        (
            "ALTER TABLE key_of_full REPLICA IDENTITY FULL, ALTER d SET NOT NULL",
            "ALTER TABLE key_of_full DROP CONSTRAINT key_of_full_pkey, ADD PRIMARY KEY (d)",
            "UPDATE key_of_full SET a = 3 WHERE a = 2",
        ),
        1,
        "Table",
    ),
    "no_columns": (
        (
            "ALTER TABLE no_columns DROP a, DROP d",
            "INSERT INTO no_columns DEFAULT VALUES",
            "ALTER TABLE no_columns ADD a int DEFAULT 3, ADD d int",
        ),
        1,
        "Table",
    ),
    "again": (
        (
            "DROP TABLE again",
            "CREATE TABLE again (a int PRIMARY KEY, d numeric(5, 2))",
            "ALTER PUBLICATION q ADD TABLE again",
            "INSERT INTO again VALUES (5, 5)",
        ),
        1,
        "Table",
    ),
    "new": (
        (
            "CREATE TABLE new (a int PRIMARY KEY, d numeric(5, 2))",
            "ALTER PUBLICATION q ADD TABLE new",
            "INSERT INTO new VALUES (5, 5)",
        ),
        1,
        "Table",
    ),
    "rekeyed": (
        (
            "ALTER TABLE rekeyed ALTER d SET NOT NULL",
            "CREATE UNIQUE INDEX rekeyed_d ON rekeyed (d)",
            "ALTER TABLE rekeyed REPLICA IDENTITY USING INDEX rekeyed_d",
            "UPDATE rekeyed SET d = 9 WHERE a = 2",
        ),
        2,
        "Configuration",
    ),
    "chosen": (
        (
            "ALTER TABLE chosen DROP d",
            "ALTER TABLE chosen ADD d uuid",
            "INSERT INTO chosen VALUES (3)",
        ),
        2,
        "Configuration",
    ),
}
#: Tables of which nothing of the batch is staged. Of ``again`` it has the row of the table that was dropped.
AT_ONCE = {"new", "rekeyed", "chosen", "no_columns"}
OPTIONS: dict[str, Any] = {
    "publication_names": ("q",),
    "value_policy": {"decimal": "fail"},
    "on_new_table": "fail",
    "key_columns": {"public.rekeyed": ("a",)},
    "column_types": {"public.chosen.d": "decimal(9,2)"},
}


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_table_that_cannot_be_staged_stops_no_other(
    source: Source, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, each of these stopped all tables, and the slot with them."""
    at_first = [name for name in TROUBLE if name != "new"]
    source.execute(
        *(f"CREATE TABLE {name} (a int PRIMARY KEY, d numeric(5, 2))" for name in at_first),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in at_first),
        f"CREATE PUBLICATION q FOR TABLE t, {', '.join(at_first)}",
    )
    options = {**OPTIONS, "transport": transport}
    lake = Lake()
    checkpoint = lake.take(source.stage(**options))
    source.execute(
        *sales(set(at_first) - {"no_columns"}),
        "INSERT INTO t VALUES (1, 'x')",
        *(statement for statements, _, _ in TROUBLE.values() for statement in statements),
        "INSERT INTO t VALUES (2, 'x')",
    )
    with pytest.raises(PgoutputError):
        source.stage(checkpoint=checkpoint, **options)
    options |= ASIDE
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert rows(source, manifest, "t") == [1, 2]
    found = entries(manifest)
    assert {name: (e.changes, e.error) for name, e in found.items()} == {
        name: (count, f"{error}Refused" if error != "Configuration" else "ConfigurationError")
        for name, (_, count, error) in TROUBLE.items()
    }
    for name in TROUBLE:
        assert rows(source, manifest, name) == ([] if name in AT_ONCE else [2]), name
    assert source.stage(checkpoint=checkpoint, **options).batch_id == manifest.batch_id
    assert all(f"copy_tables=['public.{name}']" in each.advice for name, each in found.items())
    assert "skip_lsns" not in str(found)
    said = [e.getMessage() for e in caplog.records if "is set aside" in e.getMessage()]
    assert {each.split(" ")[0] for each in said} == {f"public.{name}" for name in TROUBLE}
    assert batch_xcom(manifest, "")["set_aside"].keys() == {f"public.{name}" for name in TROUBLE}

    # Later batches pass them over, whatever comes, and say nothing new.
    checkpoint = lake.take(manifest)
    assert lake.aside == {name: each.error for name, each in found.items()}
    later = ["INSERT INTO value VALUES (9, 9)", "INSERT INTO new VALUES (9, 9)"]
    source.execute(*later, "INSERT INTO t VALUES (3, 'x')")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert [each.name for each in manifest.tables] == ["public.t"]
    assert {name: (e.changes, e.error) for name, e in entries(manifest).items()} == {
        "value": (1, ""),
        "new": (1, ""),
    }
    aside = lake.aside
    checkpoint = lake.take(manifest)
    assert lake.aside == aside
    source.execute("INSERT INTO t VALUES (4, 'x')")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert manifest.passed_over == ()
    checkpoint = lake.take(manifest)

    # A copy brings them back, when the cause is gone.
    source.execute(
        "DELETE FROM value WHERE d = 'NaN'",
        "DELETE FROM retyped WHERE d = 'NaN'",
        "ALTER TABLE rekeyed REPLICA IDENTITY DEFAULT",
    )
    options |= {"column_types": {}}
    copied = ("public.value", "public.retyped", "public.again", "public.new", "public.rekeyed")
    wanted = (*copied, "public.chosen", "public.key_of_full", "public.no_columns")
    manifest = source.stage(checkpoint=checkpoint, copy_tables=wanted, **options)
    for name in wanted:
        count = source.execute(f"SELECT count(*) FROM {name}")[0][0]
        assert len(source.copied(manifest, name)) == count, name
    assert entries(manifest) == {}
    checkpoint = lake.take(manifest)
    assert lake.aside == {"value_in_transaction": "ValueRefused"}
    source.execute(*(f"INSERT INTO {name} VALUES (20, 20)" for name in copied))
    manifest = source.stage(checkpoint=checkpoint, **options)
    for name in copied:
        assert rows(source, manifest, name.removeprefix("public.")) == [20]


def test_a_table_that_is_refused_after_its_copy_is_set_aside_again(source: Source) -> None:
    source.execute(
        "CREATE TABLE v (a int PRIMARY KEY, d numeric(5, 2))", "CREATE PUBLICATION q FOR TABLE v, t"
    )
    options = {"publication_names": ("q",), "value_policy": {"decimal": "fail"}, **ASIDE}
    lake = Lake()
    checkpoint = lake.take(source.stage(**options))
    source.execute("INSERT INTO v VALUES (1, 'NaN')", "INSERT INTO t VALUES (1, 'x')")
    checkpoint = lake.take(source.stage(checkpoint=checkpoint, **options))
    assert lake.aside == {"v": "ValueRefused"}
    # The copy itself is refused.
    manifest = source.stage(checkpoint=checkpoint, copy_tables=("public.v",), **options)
    assert [each.name for each in manifest.tables] == []
    checkpoint = lake.take(manifest)
    first = entries(manifest)
    source.execute("DELETE FROM v", "INSERT INTO v VALUES (2, 2)")
    manifest = source.stage(checkpoint=checkpoint, copy_tables=("public.v",), **options)
    assert [each["a"] for each in source.copied(manifest, "public.v")] == [2]
    checkpoint = lake.take(manifest)
    assert lake.aside == {}
    source.execute("INSERT INTO v VALUES (3, 3)", "INSERT INTO v VALUES (4, 'NaN')")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert rows(source, manifest, "v") == [3]
    checkpoint = lake.take(manifest)
    assert lake.aside == {"v": "ValueRefused"}
    assert first == {}
    (since,) = checkpoint.passed_over.values()
    assert since == entries(manifest)["v"].since_lsn


def test_a_table_that_is_set_aside_and_goes_is_not_set_aside(source: Source) -> None:
    """Nobody could bring it back."""
    source.execute(
        "CREATE TABLE v (a int PRIMARY KEY, d numeric(5, 2))", "CREATE PUBLICATION q FOR TABLE v, t"
    )
    options = {"publication_names": ("q",), "value_policy": {"decimal": "fail"}, **ASIDE}
    lake = Lake()
    checkpoint = lake.take(source.stage(**options))
    source.execute("INSERT INTO v VALUES (1, 1)", "INSERT INTO v VALUES (2, 'NaN')", "DROP TABLE v")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert rows(source, manifest, "v") == [1]
    assert entries(manifest)["v"].error == ""
    lake.take(manifest)
    assert lake.aside == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_table_that_cannot_be_copied_stops_no_other(source: Source, is_first: bool) -> None:
    """Rights, row security, a value, a row filter that fails."""
    bad = ("denied", "hidden", "secured", "valued", "filtered")
    source.execute("CREATE SCHEMA IF NOT EXISTS closed", "CREATE PUBLICATION q FOR TABLE t")
    options: dict[str, Any] = {
        "publication_names": ("q",),
        "value_policy": {"decimal": "fail"},
        "conninfo": limited(source),
        **ASIDE,
    }
    lake = Lake()
    checkpoint = None if is_first else lake.take(source.stage(**options))
    source.execute(
        *(
            f"CREATE TABLE {'closed.' if name == 'hidden' else ''}{name}"
            " (a int PRIMARY KEY, d numeric(5, 2))"
            for name in (*bad, "good")
        ),
        "GRANT SELECT ON ALL TABLES IN SCHEMA public, closed TO limited",
        "REVOKE SELECT ON denied FROM limited",
        "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
        "INSERT INTO valued VALUES (1, 'NaN')",
        "INSERT INTO filtered VALUES (1, 1)",
        "INSERT INTO good VALUES (1, 1)",
        "ALTER PUBLICATION q ADD TABLE denied, closed.hidden, secured, valued, good,"
        " filtered WHERE (1 / (a - 1) > 0)",
    )
    with pytest.raises(MissingPrivilege):
        source.stage(checkpoint=checkpoint, **{**options, "on_table_refused": "fail"})
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert len(source.copied(manifest, "public.good")) == 1
    names = {each.name for each in manifest.tables if each.copy_lsn is not None}
    assert names == {"public.good"} | ({"public.t"} if is_first else set())
    found = {each.table_name: each.error for each in manifest.passed_over}
    assert found == {
        "public.denied": "MissingPrivilege",
        "closed.hidden": "MissingPrivilege",
        "public.secured": "MissingPrivilege",
        "public.valued": "ValueRefused",
        "public.filtered": "SourceError",
    }
    checkpoint = lake.take(manifest)
    assert len(checkpoint.set_aside) == len(bad)
    source.execute("INSERT INTO good VALUES (2, 2)", "INSERT INTO valued VALUES (2, 2)")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert rows(source, manifest, "good") == [2]
    assert [each.name for each in manifest.tables] == ["public.good"]
    checkpoint = lake.take(manifest)
    # The right is all that was missing, so nobody has to ask for the copy.
    source.execute("GRANT SELECT ON denied TO limited", "INSERT INTO denied VALUES (7, 7)")
    manifest = source.stage(checkpoint=checkpoint, **options)
    assert [each["a"] for each in source.copied(manifest, "public.denied")] == [7]
    lake.take(manifest)
    assert "denied" not in lake.aside
    assert len(lake.aside) == len(bad) - 1


@pytest.mark.parametrize("answer", ["fail", "set_aside"])
def test_a_table_that_is_disturbed_in_every_snapshot_stops_no_other(
    source: Source, answer: str
) -> None:
    """Its schema is renamed again and again."""
    source.execute(
        "CREATE TABLE good (a int PRIMARY KEY)",
        "INSERT INTO good VALUES (1)",
        "CREATE SCHEMA s0",
        "CREATE TABLE s0.bad (a int PRIMARY KEY)",
        "INSERT INTO s0.bad VALUES (1)",
        "CREATE PUBLICATION q FOR TABLE t, s0.bad, good",
    )
    numbers = itertools.count()

    def rename(point: str) -> None:
        if point == "stage.during_copy":
            number = next(numbers)
            source.execute(f"ALTER SCHEMA s{number} RENAME TO s{number + 1}")

    options: dict[str, Any] = {"publication_names": ("q",), "on_table_refused": answer}
    with crash_points.watched(rename):
        if answer == "fail":
            with pytest.raises(SnapshotLost):
                source.stage(**options)
            return
        manifest = source.stage(**options)
    assert [each.name for each in manifest.tables] == ["public.t", "public.good"]
    assert len(source.copied(manifest, "public.good")) == 1
    assert [each.error for each in manifest.passed_over] == ["SnapshotLost"]
    # The next run copies it, and nobody has to ask for that.
    lake = Lake()
    manifest = source.stage(checkpoint=lake.take(manifest), **options)
    ((schema,),) = source.execute(
        "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'bad'"
    )
    assert len(source.copied(manifest, f"{schema}.bad")) == 1
    lake.take(manifest)
    assert lake.aside == {}


def limited(source: Source) -> str:
    """What a role connects with that may read only what it was granted."""
    source.execute(
        "DO $$ BEGIN CREATE ROLE limited LOGIN REPLICATION PASSWORD 'limited';"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON t TO limited",
    )
    return make_conninfo(source.conninfo, user="limited", password="limited")


def test_a_run_stops_if_no_table_could_be_copied(source: Source) -> None:
    source.execute(
        "CREATE TABLE v (a int PRIMARY KEY, d numeric(5, 2))",
        "INSERT INTO v VALUES (1, 'NaN')",
        "CREATE PUBLICATION q FOR TABLE v",
    )
    options = {"publication_names": ("q",), "value_policy": {"decimal": "fail"}, **ASIDE}
    with pytest.raises(ValueRefused):
        source.stage(**options)


@pytest.mark.parametrize(
    "options", [{"copy_tables": ("public.nope",)}, {"publication_names": ("nope",)}]
)
def test_what_is_in_question_for_all_stops_the_run(source: Source, options: dict[str, Any]) -> None:
    checkpoint = Lake().take(source.stage(**ASIDE))
    with pytest.raises(PgoutputError) as caught:
        source.stage(checkpoint=checkpoint, **ASIDE, **options)
    assert not isinstance(caught.value, (TableRefused, ValueRefused))


def test_a_mistake_in_the_options_stops_the_first_run(source: Source) -> None:
    with pytest.raises(ConfigurationError):
        source.stage(key_columns={"public.t": ("nope",)}, **ASIDE)
    with pytest.raises(ConfigurationError):
        source.stage(column_types={"public.t.b": "uuid"}, options=StreamOptions(), **ASIDE)
