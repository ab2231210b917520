"""What a conformance scenario is. The scenarios themselves are in the ``scenarios_*.py`` beside this file.

A scenario runs in a schema of its own: ``search_path`` points there while its SQL runs, and
``{p}`` stands for the name of its publication. Its statements are executed one by one in
autocommit, so a transaction is what stands between ``BEGIN`` and ``COMMIT``.

What a scenario demands of the lake afterwards is ``expected``: rows as PostgreSQL prints them. The
lake has to equal the source too, unless ``differs_because`` says why it must not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_provider_pgoutput.capture.stream.options import StreamOptions

#: Text of one row, in the order of the table's columns in the source.
Row = tuple[str | None, ...]

#: Group of the scenarios that share one database, one slot and one batch.
SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Group:
    """What the scenarios of one database have in common."""

    #: Whether a second pipeline applies a batch for each transaction also where time counts.
    applies_each_transaction: bool = False
    #: Whether the server streams every transaction (version 15: every one past 64 kB).
    streams: bool = False
    options: StreamOptions = field(default_factory=StreamOptions)
    encoding: str = "UTF8"


GROUPS = {
    SHARED: Group(applies_each_transaction=True),
    "settings": Group(applies_each_transaction=True),
    "all_tables": Group(applies_each_transaction=True),
    "reading": Group(),
    "every_table": Group(),
    "streaming": Group(streams=True),
    "two_phase": Group(streams=True, options=StreamOptions(two_phase=True)),
    "binary": Group(options=StreamOptions(binary=True)),
    "latin1": Group(encoding="LATIN1"),
}


@dataclass(frozen=True, slots=True)
class Copy:
    """``COPY ... FROM STDIN`` and the text that follows it."""

    statement: str
    data: str


@dataclass(frozen=True, slots=True)
class In:
    """A statement in a session of its own, which stays open until the scenario's DML ends."""

    session: str
    statement: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A value that is NULL in the lake and kept as text in the side table."""

    table: str
    column: str
    #: JSON text of the key of the row.
    key: str
    raw_value: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the table of scenarios."""

    id: str
    title: str
    setup: tuple[str, ...]
    dml: tuple[str | Copy | In, ...]
    #: By source table: the rows that the lake must hold at the end.
    expected: dict[str, list[Row]]
    #: Scenarios of one group share a database; publications ``FOR ALL TABLES`` need their own.
    group: str = SHARED
    #: Why the lake must not equal the source; empty: it must.
    differs_because: str = ""
    #: Columns that the lake has and the source no longer has.
    surplus_columns: tuple[str, ...] = ()
    #: Columns that the source has and the lake must not have.
    absent_columns: tuple[str, ...] = ()
    #: Tables of the source that the lake must not have.
    absent_tables: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    #: SQLSTATE with which the publisher refuses the last statement of ``dml``; empty: it does not.
    dml_sqlstate: str = ""
    #: A warning of capture must hold all of these words.
    warning: tuple[str, ...] = ()
    #: Run once in the database before the setup of any scenario; ``{database}`` is its name.
    database_setup: tuple[str, ...] = ()
    #: Schema of the tables, where it is not the scenario's own.
    table_schema: str = ""
    #: Row changes that the stream must carry, for each transaction that has any.
    changes: tuple[int, ...] = ()
    #: The first major version that has what the scenario is about.
    least_version: int = 15

    @property
    def schema(self) -> str:
        """Schema in which the scenario's SQL runs, and that holds its tables."""
        return self.id.lower()

    @property
    def schema_of_tables(self) -> str:
        """Schema of the tables in ``expected``."""
        return self.table_schema or self.schema

    @property
    def publication(self) -> str:
        """Name of the scenario's publication; those of further ones begin with it."""
        return f"{self.schema}_p"

    @property
    def publications(self) -> tuple[str, ...]:
        """Names of all publications of the scenario, in the order in which they are read."""
        found = (re.search(r"CREATE PUBLICATION (\S+)", each) for each in self.setup)
        return tuple(match[1].replace("{p}", self.publication) for match in found if match)
