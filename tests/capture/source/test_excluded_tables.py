"""Version 19 of PostgreSQL, by a double of its catalog: FOR ALL TABLES EXCEPT, and wal_level = replica.

No server of version 19 was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.slot.replication_slot import allows_slots
from airflow_provider_pgoutput.capture.source import publications

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: What version 19 would show if ``u`` were excluded, from all publications.
_DOUBLE = (
    "CREATE SCHEMA later",
    (
        "CREATE VIEW later.pg_publication_rel AS"
        " SELECT oid, xmin, prpubid, prrelid, prqual, prattrs, prrelid = 'u'::regclass AS prexcept"
        " FROM pg_catalog.pg_publication_rel"
        " UNION ALL SELECT 1, '3', oid, 'u'::regclass, NULL, NULL, true"
        " FROM pg_catalog.pg_publication WHERE puballtables"
    ),
)


def test_an_excluded_table_is_no_member(source: Source) -> None:
    source.make_slot()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "ALTER PUBLICATION p ADD TABLE u",
        "CREATE PUBLICATION every FOR ALL TABLES",
        *_DOUBLE,
    )
    ((t, u),) = source.execute("SELECT 't'::regclass::oid::int8, 'u'::regclass::oid::int8")

    def members(version: str, publication: str) -> tuple[set[int], bool]:
        """Who is published, and whether ``u`` is named as published since the slot was made.

        Other tables may be named, too: on a busy server the slot may be older than their publication.
        """

        def rows(query: str, values: Any) -> list[tuple[Any, ...]]:
            text = query.replace("pg_catalog.pg_publication_rel", f"{version}.pg_publication_rel")
            with psycopg.connect(source.conninfo) as session:
                return session.execute(text.encode(), values).fetchall()

        of_oids = rows(publications._MEMBERSHIP_QUERY, {"names": [publication], "oids": [t, u]})
        changed = rows(publications._CHANGED_QUERY, (source.slot_name, [publication]))
        return {row[0] for row in of_oids}, "public.u" in {row[1] for row in changed}

    assert members("pg_catalog", "p") == ({t, u}, True)
    assert members("later", "p") == ({t}, False)
    assert members("pg_catalog", "every")[0] == {t, u}
    assert members("later", "every")[0] == {t}


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
