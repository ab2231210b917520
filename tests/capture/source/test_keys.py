"""Which columns identify a row: what the stream's old tuples hold, in each version of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import ConfigurationError
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from tests.capture.pipeline_support import Source

TABLE = (
    "CREATE TABLE k(id int PRIMARY KEY, code text NOT NULL UNIQUE, c int NOT NULL UNIQUE)",
    "INSERT INTO k SELECT g, 'x' || g, -g FROM generate_series(1, 9) g",
    "ALTER PUBLICATION p ADD TABLE k",
)
BY_CODE = "ALTER TABLE k REPLICA IDENTITY USING INDEX k_code_key"
BY_C = "ALTER TABLE k REPLICA IDENTITY USING INDEX k_c_key"
FULL = "ALTER TABLE k REPLICA IDENTITY FULL"
DEFAULT = "ALTER TABLE k REPLICA IDENTITY DEFAULT"
NOTHING = "ALTER TABLE k REPLICA IDENTITY NOTHING"


def versions(manifest: Manifest) -> tuple[TableVersion, ...]:
    (table,) = [each for each in manifest.tables if each.name == "public.k"]
    return table.versions


def keys(manifest: Manifest) -> list[tuple[str, ...]]:
    return [each.key_columns for each in versions(manifest)]


def test_an_index_identity_is_the_key_of_a_table_with_a_primary_key(source: Source) -> None:
    source.execute(*TABLE, BY_CODE)
    first = source.stage()
    assert keys(first) == [("code",)]
    source.execute(
        "UPDATE k SET id = 20 WHERE id = 2",
        "DELETE FROM k WHERE id = 3",
        "UPDATE k SET code = 'y' WHERE id = 4",
    )
    second = source.stage(checkpoint=checkpoint_of(first))
    assert keys(second) == [("code",)]
    moved, deleted, renamed = source.changes(second, "public.k")
    assert (moved["op"], moved["old_kind"], moved["id"], moved["code"]) == ("U", None, 20, "x2")
    # The old values by position: code is the second column.
    assert (deleted["op"], deleted["old_kind"], deleted["o1"]) == ("D", "K", "x3")
    assert (renamed["op"], renamed["old_kind"], renamed["o1"]) == ("U", "K", "x4")


def test_the_key_of_each_version_follows_its_replica_identity(source: Source) -> None:
    """C15, with changes on both sides of every switch."""
    source.execute(*TABLE)
    first = source.stage()
    source.execute("DELETE FROM k WHERE id = 1")
    for number, switch in enumerate((BY_CODE, BY_C, FULL, DEFAULT, NOTHING), start=2):
        source.execute(switch)
        if switch == NOTHING:
            source.execute("INSERT INTO k VALUES (100, 'z', 100)")
        else:
            source.execute(f"DELETE FROM k WHERE id = {number}")
    second = source.stage(checkpoint=checkpoint_of(first))
    assert [each.replica_identity for each in versions(second)] == ["d", "i", "i", "f", "d", "n"]
    assert keys(second) == [("id",), ("code",), ("c",), ("id",), ("id",), ("id",)]
    deletes = [row for row in source.changes(second, "public.k") if row["op"] == "D"]
    held = [[row.get(f"o{place}") for place in range(3)] for row in deletes]
    assert held == [
        [1, None, None],
        [None, "x2", None],
        [None, None, -3],
        [4, "x4", -4],
        [5, None, None],
    ]


def test_a_key_that_moved_to_an_index_and_back_is_not_taken_from_the_catalog(
    source: Source,
) -> None:
    source.execute(*TABLE)
    first = source.stage()
    source.execute(BY_C, "DELETE FROM k WHERE id = 1", DEFAULT, "DELETE FROM k WHERE id = 2")
    assert keys(source.stage(checkpoint=checkpoint_of(first))) == [("c",), ("id",)]


def test_the_order_of_a_key_is_that_of_its_index(source: Source) -> None:
    source.execute(
        "CREATE TABLE k(a int NOT NULL, b int NOT NULL, c int, PRIMARY KEY (b, a))",
        "ALTER PUBLICATION p ADD TABLE k",
    )
    first = source.stage()
    assert keys(first) == [("b", "a")]
    source.execute("INSERT INTO k VALUES (1, 2, 3)")
    assert keys(source.stage(checkpoint=checkpoint_of(first))) == [("b", "a")]


def test_part_of_a_primary_key_is_no_key(source: Source) -> None:
    """A column list may leave key columns out when only inserts are published."""
    source.execute(
        "CREATE TABLE k(a int, b int, PRIMARY KEY (a, b))",
        "CREATE PUBLICATION q FOR TABLE k (a) WITH (publish = 'insert')",
    )
    first = source.stage(publication_names=("q",))
    assert keys(first) == [()]
    source.execute("INSERT INTO k VALUES (1, 1), (1, 2)")
    second = source.stage(publication_names=("q",), checkpoint=checkpoint_of(first))
    assert keys(second) == [()]


def test_a_partitioned_table_has_the_key_of_its_root(source: Source) -> None:
    source.execute(
        "CREATE TABLE k(a int PRIMARY KEY, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE k1 PARTITION OF k FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION q FOR TABLE k WITH (publish_via_partition_root)",
    )
    first = source.stage(publication_names=("q",))
    assert keys(first) == [("a",)]
    source.execute("INSERT INTO k VALUES (1, 1)", "DELETE FROM k")
    second = source.stage(publication_names=("q",), checkpoint=checkpoint_of(first))
    assert keys(second) == [("a",)]


@pytest.mark.parametrize("identity", [DEFAULT, BY_CODE])
def test_a_configured_key_outside_the_identity_is_refused(source: Source, identity: str) -> None:
    source.execute(*TABLE, identity)
    with pytest.raises(ConfigurationError) as refused:
        source.stage(key_columns={"public.k": ["c"]})
    assert refused.value.table == "public.k"
    assert "REPLICA IDENTITY" in str(refused.value)
    assert source.confirmed() is None


@pytest.mark.parametrize(("identity", "key"), [(FULL, "c"), (DEFAULT, "id"), (BY_CODE, "code")])
def test_a_configured_key_that_old_tuples_hold_is_taken(
    source: Source, identity: str, key: str
) -> None:
    source.execute(*TABLE, identity)
    options: dict[str, Any] = {"key_columns": {"public.k": [key]}}
    first = source.stage(**options)
    source.execute("DELETE FROM k WHERE id = 1")
    second = source.stage(**options, checkpoint=checkpoint_of(first))
    assert keys(first) == keys(second) == [(key,)]
    assert second.end_lsn > Lsn(0)
