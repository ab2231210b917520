"""Version 19 of PostgreSQL, by a double of its catalog: FOR ALL TABLES EXCEPT, and wal_level = replica.

No server of version 19 was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.source import publications
from airflow_provider_pgoutput.capture.source.slot import allows_slots

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: What version 19 would show if ``u`` were excluded.
_DOUBLE = (
    "CREATE SCHEMA later",
    (
        "CREATE VIEW later.pg_publication_rel AS"
        " SELECT oid, xmin, prpubid, prrelid, prqual, prattrs, prrelid = 'u'::regclass AS prexcept"
        " FROM pg_catalog.pg_publication_rel"
    ),
)


def test_an_excluded_table_is_no_member(source: Source) -> None:
    source.make_slot()
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u", *_DOUBLE)
    ((t, u),) = source.execute("SELECT 't'::regclass::oid::int8, 'u'::regclass::oid::int8")

    def members(version: str) -> tuple[set[int], set[str | None]]:
        """Who is published, and who became so since the slot was made."""

        def rows(query: str, values: Any) -> list[tuple[Any, ...]]:
            text = query.replace("pg_catalog.pg_publication_rel", f"{version}.pg_publication_rel")
            with psycopg.connect(source.conninfo) as session:
                return session.execute(text.encode(), values).fetchall()

        of_oids = rows(publications._MEMBERSHIP_QUERY, {"names": ["p"], "oids": [t, u]})
        changed = rows(publications._CHANGED_QUERY, (source.slot_name, ["p"]))
        return {row[0] for row in of_oids}, {row[1] for row in changed}

    assert members("pg_catalog") == ({t, u}, {"public.u"})
    assert members("later") == ({t}, set())


@pytest.mark.parametrize(
    ("wal_level", "major", "allowed"),
    [
        ("logical", 15, True),
        ("replica", 18, False),
        ("replica", 19, True),
        ("minimal", 19, False),
        ("logical", 19, True),
    ],
)
def test_from_version_19_on_a_slot_raises_the_level_of_a_replica(
    wal_level: str, major: int, *, allowed: bool
) -> None:
    assert allows_slots(wal_level, major) == allowed
