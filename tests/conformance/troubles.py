"""Ten kinds of trouble of one table, each with the ways in which the table comes back.

What is not here: what must be true then (``test_ten_troubles.py``).
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_SLOT, SUMMARY_END_LSN
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG
from tests.faults.rest_catalog import Commit, Fault, RestCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conformance.many_tables import Tables

#: Of the catalog through which the permission on one table is refused.
REST = "ten_troubles"
#: A value that is not sent again if it does not change.
LARGE = "repeat(md5(random()::text), 300)"
#: How many tables get a row beside the bad ones.
_GROWN = 6


@dataclass
class Case:
    """The tables of one pipeline, and those of them that have the trouble."""

    tables: Tables
    names: tuple[str, ...]
    bad: tuple[str, ...]
    rest: RestCatalog
    is_log: bool
    #: Keys that no row has.
    numbers: Iterator[int]
    #: All names, again and again: which tables get a row next.
    turns: Iterator[str]
    #: By ``schema.table``: targets of other names.
    targets: dict[str, str]
    #: The main snapshots of the bad tables before the trouble, and where they are hidden, by name.
    heads: dict[str, int] = field(default_factory=dict)

    def number(self) -> int:
        """A key that no row has."""
        return next(self.numbers)

    @property
    def names_of_source(self) -> tuple[str, ...]:
        """The bad tables as ``schema.table``."""
        return tuple(f"public.{name}" for name in self.bad)

    def each(self, statement: str) -> list[str]:
        """A statement for each bad table."""
        return [statement.format(t=name, n=self.number()) for name in self.bad]

    def grow(self) -> list[str]:
        """Statements that add a row to each bad table and to some others. Nothing is wrong in it.

        The others take turns. If all of 20 got a row in each batch, the test would take an hour.
        """
        next_ones = itertools.islice(self.turns, min(_GROWN, len(self.names)))
        names = dict.fromkeys((*self.bad, *next_ones))
        return [f"INSERT INTO {name} VALUES ({self.number()}, 1, 'x')" for name in names]

    def target(self, name: str) -> str:
        """The lake's table of a table."""
        return self.targets.get(f"public.{name}", name)

    def sql(self, statement: str) -> None:
        """Run a statement for the target of each bad table."""
        for name in self.bad:
            target = quoted(CATALOG, self.tables.pipeline.namespace, self.target(name))
            self.tables.pipeline.spark.sql(statement.format(target))

    def load(self, name: str) -> Any:
        """The lake's table of a table, as pyiceberg loads it."""
        pipeline = self.tables.pipeline
        catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
        return catalog.load_table((pipeline.namespace, self.target(name)))

    def remember(self) -> None:
        """Remember where the bad tables are."""
        for name in self.bad:
            self.heads[name] = self.load(name).current_snapshot().snapshot_id

    def go_back_to_remembered(self) -> None:
        """Undo what was done to the bad tables since."""
        for name in self.bad:
            table = (self.tables.pipeline.namespace, self.target(name))
            self.tables.pipeline.spark.sql(
                f"CALL {CATALOG}.system.set_current_snapshot('{'.'.join(table)}', {self.heads[name]})"
            )

    def rename(self, *, hide: bool) -> None:
        """Take the bad tables of the lake away, or bring them back."""
        pipeline = self.tables.pipeline
        catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
        for name in self.bad:
            here = (pipeline.namespace, self.target(name))
            there = (pipeline.namespace, f"hidden_{self.target(name)}")
            if hide:
                with contextlib.suppress(NoSuchTableError):
                    catalog.drop_table(there)
                catalog.rename_table(here, there)
            else:
                catalog.rename_table(there, here)

    def set_slot(self, value: str) -> None:
        """Write a slot into the properties of the bad tables."""
        self.sql(f"ALTER TABLE {{}} SET TBLPROPERTIES ('{PROPERTY_SLOT}' = '{value}')")

    def begin_logs_anew(self) -> None:
        """Give the bad tables other targets, as a change log needs for a copy."""
        if self.is_log:
            new = {f"public.{name}": f"{name}_{self.number()}" for name in self.bad}
            self.targets |= new
            self.tables.set_targets(self.targets)

    def copy(self, **options: Any) -> None:
        """Bring the bad tables back by copies."""
        self.begin_logs_anew()
        self.tables.run(copy_tables=self.names_of_source, **options)

    def publish_again(self) -> None:
        """Bring the bad tables back by taking them out of the publication for a while."""
        names = ", ".join(self.bad)
        self.tables.run(f"ALTER PUBLICATION p DROP TABLE {names}", *self.beside())
        self.begin_logs_anew()
        self.tables.run(f"ALTER PUBLICATION p ADD TABLE {names}", *self.grow())

    def beside(self) -> list[str]:
        """A change of a table that stays published."""
        return [f"INSERT INTO beside VALUES ({self.number()}, 1, 'x')"]

    def replay(self, **options: Any) -> None:
        """Bring the bad tables back from the staged batches, as the replay task does."""
        pipeline = self.tables.pipeline
        replay(pipeline.spark, pipeline.catch_up_job(**options))


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble."""

    #: The class of its error.
    error: str
    #: Does it, and returns options of the stage task that meets it.
    make: Callable[[Case], dict[str, Any]]
    #: By name: each ends the cause and brings the tables back.
    ways: dict[str, Callable[[Case], None]]
    #: Whether a batch is refused if each of its tables has the trouble: the fault is the lake's then.
    is_of_the_lake: bool = False


def _run_at_source(*statements: str) -> Callable[[Case], dict[str, Any]]:
    def make(case: Case) -> dict[str, Any]:
        for statement in statements:
            case.tables.execute(*case.each(statement))
        return {}

    return make


def _after(do: Callable[[Case], Any], then: Callable[[Case], None]) -> Callable[[Case], None]:
    def way(case: Case) -> None:
        do(case)
        then(case)

    return way


def _at_source(*statements: str) -> Callable[[Case], None]:
    def do(case: Case) -> None:
        for statement in statements:
            case.tables.execute(*case.each(statement))

    return do


# A column's type changes. Its name says how often: a type of which nothing is in the lake.
def _retype(case: Case) -> dict[str, Any]:
    for name in case.bad:
        ((kind,),) = case.tables.execute(
            "SELECT atttypid::regtype FROM pg_attribute"
            f" WHERE attrelid = '{name}'::regclass AND attname = 'd'"
        )
        other = "numeric(5,2)" if kind == "text" else "text"
        case.tables.execute(
            f"ALTER TABLE {name} ALTER d TYPE {other} USING d::{other}",
            f"INSERT INTO {name} VALUES ({case.number()}, '7')",
        )
    return {}


def _keep_retyped(case: Case) -> None:
    """Older rows were changed without an event, so each is written once more."""
    case.replay(keep_retyped_columns=True)
    case.tables.run(*case.each("UPDATE {t} SET d = d"))


def _change_target(case: Case) -> dict[str, Any]:
    case.set_slot("another")
    case.tables.execute(*case.grow())
    return {}


def _mend_target(case: Case) -> None:
    case.set_slot(case.tables.pipeline.slot_name)


def _keys(snapshot: Any) -> Any:
    return snapshot.summary.additional_properties


def _roll_back(case: Case) -> dict[str, Any]:
    case.remember()
    for name in case.bad:
        table = case.load(name)
        marked = [each for each in table.metadata.snapshots if SUMMARY_END_LSN in _keys(each)]
        assert len(marked) > 1, "a table goes back over a batch"
        first = marked[0].snapshot_id
        target = f"{case.tables.pipeline.namespace}.{case.target(name)}"
        case.tables.pipeline.spark.sql(
            f"CALL {CATALOG}.system.set_current_snapshot('{target}', {first})"
        )
    case.tables.execute(*case.grow())
    return {}


def _drop(case: Case) -> dict[str, Any]:
    case.rename(hide=True)
    case.tables.execute(*case.grow())
    return {}


def _replace_by_view(case: Case) -> dict[str, Any]:
    case.rename(hide=True)
    case.sql("CREATE VIEW {} AS SELECT 1 AS a")
    case.tables.execute(*case.grow())
    return {}


def _drop_view(case: Case) -> None:
    case.sql("DROP VIEW {}")


def _bring_tables_back(case: Case) -> None:
    case.rename(hide=False)


def _lose_row(case: Case) -> dict[str, Any]:
    for name in case.bad:
        case.tables.run(
            f"INSERT INTO {name} VALUES ({(key := case.number())}, 1, {LARGE})",
        )
        case.heads[name] = case.load(name).current_snapshot().snapshot_id
        target = quoted(CATALOG, case.tables.pipeline.namespace, case.target(name))
        case.tables.pipeline.spark.sql(f"REFRESH TABLE {target}")
        case.tables.pipeline.spark.sql(f"DELETE FROM {target} WHERE a = {key}")
        case.tables.execute(f"UPDATE {name} SET d = 2 WHERE a = {key}")
    case.tables.execute(*case.grow())
    return {}


def _quarantine(case: Case) -> None:
    """The row stays in the quarantine until it is deleted. Without one the delete is refused, too."""
    case.replay(on_row_refused="quarantine")
    options = case.tables.pipeline.plan_options
    options["on_row_refused"] = "quarantine"
    case.tables.run(*case.each("DELETE FROM {t} WHERE a = 'NaN'"))
    del options["on_row_refused"]


def _without_key(case: Case) -> dict[str, Any]:
    names = case.bad
    case.tables.run(
        *(f"ALTER TABLE {name} DROP CONSTRAINT {name}_pkey" for name in names),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        *(f"INSERT INTO {name} VALUES (99, 1, 'x')" for name in names),
    )
    case.remember()
    # The session that plays somebody else knows an older state of the table.
    case.sql("REFRESH TABLE {}")
    case.sql("DELETE FROM {} WHERE a = 99")
    case.tables.execute(*(f"DELETE FROM {name} WHERE a = 99" for name in names), *case.grow())
    return {}


def _with_key(case: Case) -> None:
    """The tables have a key again, in a batch of its own."""
    case.tables.run(
        *(f"ALTER TABLE {name} ADD PRIMARY KEY (a)" for name in case.bad),
        *(f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT" for name in case.bad),
        *case.grow(),
    )


def _refuse_commits(case: Case) -> dict[str, Any]:
    targets = {case.target(name) for name in case.bad}

    def is_theirs(commit: Commit) -> bool:
        return commit.table in targets

    case.rest.fail(Fault(is_theirs, 403, commits=False, times=1 << 30))
    case.tables.execute(*case.grow())
    return {}


def _allow_commits(case: Case) -> None:
    case.rest.fail()


def _next_batch(case: Case) -> None:
    case.tables.run(*case.grow())


def _value(case: Case) -> dict[str, Any]:
    case.tables.execute(*case.each("INSERT INTO {t} VALUES ({n}, 'NaN')"), *case.grow())
    return {"value_policy": {"decimal": "fail"}}


_mend_value = _at_source("DELETE FROM {t} WHERE d = 'NaN'")


def _lose_right(case: Case) -> dict[str, Any]:
    """The tables leave the publication and come again, so they are copied, which the role may not."""
    names = ", ".join(case.bad)
    case.tables.run(f"ALTER PUBLICATION p DROP TABLE {names}", *case.beside())
    with psycopg.connect(case.tables.pipeline.conninfo, autocommit=True) as session:
        session.execute(
            "DO $$ BEGIN CREATE ROLE limited LOGIN REPLICATION PASSWORD 'limited';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        session.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited")
        session.execute(f"REVOKE SELECT ON {names} FROM limited".encode())
    conninfo = make_conninfo(case.tables.pipeline.conninfo, user="limited", password="limited")
    case.tables.execute(f"ALTER PUBLICATION p ADD TABLE {names}", *case.grow())
    return {"conninfo": conninfo}


def _give_right(case: Case) -> None:
    case.tables.execute(*case.each("GRANT SELECT ON {t} TO limited"))


def _by_itself(case: Case) -> None:
    case.begin_logs_anew()
    case.tables.run(*case.grow())


_AGAIN = (
    "DROP TABLE {t}",
    "CREATE TABLE {t} (a numeric(9,2) PRIMARY KEY, d numeric(5,2), note text)",
    "ALTER TABLE {t} ALTER note SET STORAGE EXTERNAL",
    "ALTER PUBLICATION p ADD TABLE {t}",
    "INSERT INTO {t} VALUES (1, 1, 'again')",
)

TYPE = Trouble("TableRefused", _retype, {"replay": _keep_retyped, "copy": Case.copy})
CHANGED = Trouble(
    "TableRefused",
    _change_target,
    {"replay": _after(_mend_target, Case.replay), "copy": _after(_mend_target, Case.copy)},
)
ROLLED_BACK = Trouble(
    "TableRolledBack",
    _roll_back,
    {"replay": _after(Case.go_back_to_remembered, Case.replay), "copy": Case.copy},
)
DROPPED = Trouble(
    "TableRolledBack",
    _drop,
    {"replay": _after(_bring_tables_back, Case.replay), "copy": Case.copy},
)
VIEW = Trouble(
    "TableRolledBack",
    _replace_by_view,
    {
        "replay": _after(_drop_view, _after(_bring_tables_back, Case.replay)),
        "copy": _after(_drop_view, Case.copy),
    },
)
ROW_MISSING = Trouble(
    "RowMissing",
    _lose_row,
    {"replay": _after(Case.go_back_to_remembered, Case.replay), "copy": Case.copy},
)
KEY_VALUE = Trouble(
    "ValueRefused",
    _run_at_source("INSERT INTO {t} VALUES ('NaN', 1, 'x')"),
    {
        "replay": _quarantine,
        "copy": _after(_at_source("DELETE FROM {t} WHERE a = 'NaN'"), Case.copy),
    },
)
FULL_IDENTITY = Trouble(
    "RowMissing",
    _without_key,
    {
        "replay": _after(_after(Case.go_back_to_remembered, Case.replay), _with_key),
        "copy": _after(Case.copy, _with_key),
    },
)
MADE_AGAIN = Trouble(
    "TableRefused",
    _run_at_source(*_AGAIN),
    {
        "copy": Case.copy,
        "published again": Case.publish_again,
    },
)
PERMISSION = Trouble(
    "LakeDenied",
    _refuse_commits,
    {
        "replay": _after(_allow_commits, Case.replay),
        "copy": _after(_allow_commits, Case.copy),
        "by itself": _after(_allow_commits, _next_batch),
    },
    is_of_the_lake=True,
)
VALUE = Trouble(
    "ValueRefused",
    _value,
    {
        "copy": _after(_mend_value, Case.copy),
        "published again": _after(_mend_value, Case.publish_again),
    },
)
RIGHT = Trouble(
    "MissingPrivilege",
    _lose_right,
    {
        "by itself": _after(_give_right, _by_itself),
        "copy": _after(_give_right, Case.copy),
    },
)
RESERVED = Trouble(
    "TableRefused",
    _run_at_source(
        'ALTER TABLE {t} ADD "_pgoutput_op" int DEFAULT 5', "INSERT INTO {t} VALUES ({n}, 1, 'x')"
    ),
    {
        "copy": _after(_at_source('ALTER TABLE {t} DROP "_pgoutput_op"'), Case.copy),
        "published again": _after(
            _at_source('ALTER TABLE {t} DROP "_pgoutput_op"'), Case.publish_again
        ),
    },
)

UPSERT: dict[str, Trouble] = {
    "type": TYPE,
    "changed": CHANGED,
    "rolled back": ROLLED_BACK,
    "dropped": DROPPED,
    "view": VIEW,
    "row missing": ROW_MISSING,
    "key value": KEY_VALUE,
    "full identity": FULL_IDENTITY,
    "made again": MADE_AGAIN,
    "permission": PERMISSION,
    "value": VALUE,
    "right": RIGHT,
}
#: A change log has every change as it came. So no row is missing in it, and NULL may be in its key.
LOG: dict[str, Trouble] = {
    "type": TYPE,
    "changed": CHANGED,
    "rolled back": ROLLED_BACK,
    "dropped": DROPPED,
    "view": VIEW,
    "made again": MADE_AGAIN,
    "permission": PERMISSION,
    "value": VALUE,
    "right": RIGHT,
    "reserved": RESERVED,
}


def created(names: Sequence[str]) -> list[str]:
    """Statements that make the tables, and one beside them that is in no trouble and is not compared."""
    found = []
    for name in (*names, "beside"):
        found += [
            f"CREATE TABLE {name} (a numeric(9,2) PRIMARY KEY, d numeric(5,2), note text)",
            f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL",
            f"INSERT INTO {name} VALUES (1, 1, 'x'), (2, 2, 'y')",
        ]
    return [*found, f"CREATE PUBLICATION p FOR TABLE {', '.join((*names, 'beside'))}"]
