"""Scenario C103: keys that a nondeterministic collation takes for equal, from the server into the lake.

Such a collation needs a server with ICU. Where the one of the other tests has none, a server of version 17
is started for this file alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.conformance.many_tables import Tables
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.pipeline import Pipeline


VERSION_WITH_ICU = 17
#: ``bar`` equals ``BAR``.
BLIND = "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
LARGE = "repeat('k', 9000)"


def has_icu(conninfo: str) -> bool:
    with psycopg.connect(conninfo) as session:
        # The one that initdb takes from ICU; some of its provider stand in the catalog without it, too.
        found = session.execute("SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu'")
        return found.fetchone() is not None


@pytest.fixture
def postgres_database(
    postgres_database: str, server_home: Path, record_property: Callable[[str, object], None]
) -> Iterator[str]:
    """An empty database of a server with ICU."""
    if has_icu(postgres_database):
        yield postgres_database
        return
    # Not what ``--postgres-version`` says, so it is not noted for that version.
    record_property("postgres_version", VERSION_WITH_ICU)
    server = EmbeddedPostgres(
        server_home,
        installation=find_or_fetch_installation(VERSION_WITH_ICU),
        settings={"fsync": "off"},
    )
    try:
        yield server.start().conninfo()
    finally:
        server.destroy()


#: Statements of one batch, and the keys that the lake holds after it. ``c`` is too large to come along
#: where it did not change.
STEPS = (
    # Found by another spelling: the key stays as it is stored.
    (("UPDATE t SET b = 1 WHERE a = 'BAR'",), ("bar", "foo")),
    # To the collation nothing changes; PostgreSQL compares bytes and sends the old key.
    (("UPDATE t SET a = 'BAR' WHERE a = 'bar'",), ("BAR", "foo")),
    (("INSERT INTO t VALUES ('Bar', 2) ON CONFLICT (a) DO UPDATE SET b = 3",), ("BAR", "foo")),
    (("DELETE FROM t WHERE a = 'bAr'",), ("foo",)),
    (("INSERT INTO t VALUES ('bar', 4, " + LARGE + ")",), ("bar", "foo")),
    # There and back in a batch, over a key that was deleted in it.
    (
        (
            "UPDATE t SET a = 'BAr' WHERE a = 'bar'",
            "UPDATE t SET b = 5 WHERE a = 'bar'",
            "DELETE FROM t WHERE a = 'FOO'",
            "INSERT INTO t VALUES ('Foo', 6)",
            "UPDATE t SET a = 'foO' WHERE a = 'foo'",
            "UPDATE t SET a = 'bar'  WHERE a = 'bAr'",
        ),
        ("bar", "foO"),
    ),
)


@pytest.mark.parametrize("identity", slow_but_each(2, ["DEFAULT", "FULL"]))
def test_c103_keys_that_a_collation_takes_for_equal_are_known_by_their_bytes(
    pipeline: Pipeline, identity: str
) -> None:
    """C103: each row is the source's, under the key as it is stored, whichever spelling found it."""
    tables = Tables(pipeline)
    tables.run(
        BLIND,
        "CREATE TABLE t(a text COLLATE blind PRIMARY KEY, b int, c text)",
        "ALTER TABLE t ALTER c SET STORAGE EXTERNAL",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        f"INSERT INTO t VALUES ('bar', 0, {LARGE}), ('foo', 0, NULL)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        tables.execute("INSERT INTO t VALUES ('BAR', 0)")
    for number, (statements, keys) in enumerate(STEPS):
        tables.run(*statements, transport=("sql", "walsender")[number % 2])
        assert tables.lake_rows("t", columns=("a",)) == {(key,): 1 for key in keys}, statements
        tables.assert_equal("t")
    tables.assert_repeatable()
