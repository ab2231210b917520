"""Roles that may do exactly one thing too little: each is told the statement that gives it.

B17, B18 and B19 of the table of bad input.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.copy import plan
from airflow_provider_pgoutput.errors import MissingPrivilege
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.pipeline_support import Source

TRANSPORTS = ("sql", "walsender")
SECRET = "canary-secret"


@dataclass(frozen=True)
class Reader:
    """A role with no rights but those that a test gives it."""

    source: Source
    role: str

    @property
    def conninfo(self) -> str:
        return psycopg.conninfo.make_conninfo(self.source.conninfo, user=self.role, password=SECRET)

    def may(self, *statements: str) -> None:
        self.source.execute(*(each.format(role=self.role) for each in statements))

    def refused(self, **options: Any) -> MissingPrivilege:
        """Stage, and expect that the role is told what it lacks, that no slot was made and nothing moved."""
        before = self.source.confirmed()
        with pytest.raises(MissingPrivilege) as caught:
            self.source.stage(conninfo=self.conninfo, **options)
        assert self.source.confirmed() == before
        assert SECRET not in str(caught.value)
        return caught.value


@pytest.fixture
def reader(source: Source) -> Iterator[Reader]:
    reader = Reader(source, f"reader_{uuid.uuid4().hex[:8]}")
    (database,) = source.execute("SELECT quote_ident(current_database())")[0]
    source.execute(
        f"CREATE ROLE {reader.role} LOGIN PASSWORD '{SECRET}'",
        f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
        'CREATE SCHEMA "s.1"',
        'CREATE TABLE "s.1".u(a int PRIMARY KEY, b text, c text)',
        'ALTER PUBLICATION p ADD TABLE "s.1".u(a, b)',
        "INSERT INTO \"s.1\".u VALUES (1, 'x', 'y')",
        "INSERT INTO t VALUES (1, 'x')",
    )
    yield reader
    source.execute(
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE slot_name = '{source.slot_name}' AND NOT active",
        f"DROP OWNED BY {reader.role}",
        f"DROP ROLE {reader.role}",
    )


def test_each_right_that_lacks_is_named_until_the_copy_goes_through(reader: Reader) -> None:
    role = reader.role
    (database,) = reader.source.execute("SELECT quote_ident(current_database())")[0]
    assert "GRANT CONNECT ON DATABASE" in str(reader.refused())
    reader.may(f"GRANT CONNECT ON DATABASE {database} TO {{role}}")
    refusal = reader.refused()
    assert refusal.table == '"s.1".u'
    for statement in (
        f'GRANT USAGE ON SCHEMA "s.1" TO {role}',
        f'GRANT SELECT ON "s.1".u TO {role}',
        f"GRANT SELECT ON public.t TO {role}",
    ):
        assert statement in str(refusal)
    reader.may('GRANT USAGE ON SCHEMA "s.1" TO {role}', "GRANT SELECT ON t TO {role}")
    assert "public.t" not in str(reader.refused())
    # The published columns are enough.
    reader.may('GRANT SELECT (a, b) ON "s.1".u TO {role}')
    assert "ALTER ROLE <role> REPLICATION" in str(reader.refused())
    reader.may("ALTER ROLE {role} REPLICATION")
    batch = reader.source.stage(conninfo=reader.conninfo)
    assert [row["a"] for row in reader.source.copied(batch, "s.1.u")] == [1]


def test_a_role_that_reads_some_columns_copies_a_large_table_whole(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of blocks are for a role that may read the whole table, and a filter needs its columns."""
    monkeypatch.setattr(plan, "PART_BYTES", 1 << 16)
    (database,) = reader.source.execute("SELECT quote_ident(current_database())")[0]
    reader.may(
        f"GRANT CONNECT ON DATABASE {database} TO {{role}}",
        "ALTER ROLE {role} REPLICATION",
        'GRANT USAGE ON SCHEMA "s.1" TO {role}',
        "GRANT SELECT ON t TO {role}",
        'GRANT SELECT (a, b) ON "s.1".u TO {role}',
        "INSERT INTO \"s.1\".u SELECT g, repeat('x', 500), 'y' FROM generate_series(2, 2000) g",
        "ALTER PUBLICATION p SET (publish = 'insert')",
        'ALTER PUBLICATION p SET TABLE t, "s.1".u(a, b) WHERE (c IS NOT NULL)',
    )
    assert 'GRANT SELECT ON "s.1".u' in str(reader.refused())
    reader.may('GRANT SELECT (c) ON "s.1".u TO {role}')
    batch = reader.source.stage(conninfo=reader.conninfo)
    assert len(reader.source.copied(batch, "s.1.u")) == 2000


def test_row_security_refuses_the_copy_instead_of_leaving_rows_out(reader: Reader) -> None:
    (database,) = reader.source.execute("SELECT quote_ident(current_database())")[0]
    reader.may(
        f"GRANT CONNECT ON DATABASE {database} TO {{role}}",
        "GRANT pg_read_all_data TO {role}",
        "ALTER ROLE {role} REPLICATION",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON t USING (a > 5)",
    )
    refusal = reader.refused()
    assert f"ALTER ROLE {reader.role} BYPASSRLS" in str(refusal)
    assert refusal.table == "public.t"
    reader.may("ALTER ROLE {role} BYPASSRLS")
    batch = reader.source.stage(conninfo=reader.conninfo)
    assert [row["a"] for row in reader.source.copied(batch, "public.t")] == [1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_stream_needs_the_right_to_replicate_and_none_to_read(
    reader: Reader, transport: str
) -> None:
    source = reader.source
    (database,) = source.execute("SELECT quote_ident(current_database())")[0]
    checkpoint = checkpoint_of(source.stage(conninfo=source.conninfo))
    source.execute("INSERT INTO t VALUES (2, 'streamed')")
    reader.may(f"GRANT CONNECT ON DATABASE {database} TO {{role}}")
    options: dict[str, Any] = {"checkpoint": checkpoint, "transport": transport}
    assert "REPLICATION" in str(reader.refused(**options))
    reader.may("ALTER ROLE {role} REPLICATION")
    batch = source.stage(conninfo=reader.conninfo, **options)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [2]
    # A copy that is asked for later needs what the first one needed.
    assert "GRANT SELECT ON public.t" in str(reader.refused(copy_tables=["public.t"], **options))
