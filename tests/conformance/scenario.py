"""What a conformance scenario is. The scenarios themselves are in the ``scenarios_*.py`` beside this file.

A scenario runs in a schema of its own: ``search_path`` points there while its SQL runs, and
``{p}`` stands for the name of its publication. Its statements are executed one by one in
autocommit, so a transaction is what stands between ``BEGIN`` and ``COMMIT``.

What a scenario demands of the lake afterwards is ``expected``: rows as PostgreSQL prints them. The
lake has to equal the source too, unless ``differs_because`` says why it must not.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Text of one row, in the order of the table's columns in the source.
Row = tuple[str | None, ...]

#: Group of the scenarios that share one database, one slot and one batch.
SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Copy:
    """``COPY ... FROM STDIN`` and the text that follows it."""

    statement: str
    data: str


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
    dml: tuple[str | Copy, ...]
    #: By source table: the rows that the lake must hold at the end.
    expected: dict[str, list[Row]]
    #: Scenarios of one group share a database; publications ``FOR ALL TABLES`` need their own.
    group: str = SHARED
    #: Why the lake must not equal the source; empty: it must.
    differs_because: str = ""
    #: Columns that the lake has and the source no longer has.
    surplus_columns: tuple[str, ...] = ()
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
        """Name of the scenario's publication."""
        return f"{self.schema}_p"
