"""A server whose hash functions are not PostgreSQL's: the same is found by md5."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.proof.request import MD5

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_TABLES = """
CREATE TABLE numbered (id int PRIMARY KEY, v text, tags text[], at timestamptz, n numeric(12,2), f float8);
CREATE TABLE named (name text PRIMARY KEY, v text);
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE numbered, named, keyless;
INSERT INTO numbered SELECT i, 'v' || i, ARRAY['a', NULL, i::text], now() + i * interval '1 hour', i / 7.0,
    CASE WHEN i % 5 = 0 THEN 'NaN' ELSE i / 8.0 END FROM generate_series(1, 3000) i;
INSERT INTO named SELECT 'k' || i, 'v' FROM generate_series(1, 3000) i;
INSERT INTO keyless SELECT i % 9, NULLIF(i % 3, 0)::text FROM generate_series(1, 99) i;
"""
#: Other functions under the old names, as another system may have them. The operator classes of indexes know
#: the old ones by their OID.
_OTHER_FUNCTIONS = """
UPDATE pg_catalog.pg_proc SET proname = 'old_' || proname
 WHERE proname IN ('hashint4extended', 'hashtextextended');
CREATE FUNCTION pg_catalog.hashint4extended(int4, int8) RETURNS int8 IMMUTABLE LANGUAGE sql
    AS 'SELECT $1 + $2 % 1000';
CREATE FUNCTION pg_catalog.hashtextextended(text, int8) RETURNS int8 IMMUTABLE LANGUAGE sql
    AS 'SELECT pg_catalog.length($1) + $2 % 1000';
"""


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    made = new_world(("p",))
    made.sql(_TABLES)
    made.run()
    return made


def test_an_unknown_function_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="Unknown hash_function 'sha1'"):
        world.request(hash_function="sha1")


@pytest.mark.slow
def test_another_server_is_compared_by_md5(world: World, caplog: pytest.LogCaptureFixture) -> None:
    proof = world.verify(hash_function=MD5)
    assert not proof.different
    assert sum(each.source.rows for each in proof.tables if each.source is not None) == 6099
    assert "made by md5" not in caplog.text
    world.sql(_OTHER_FUNCTIONS)
    proof = world.verify()
    assert [each.not_compared for each in proof.tables] == [None] * 3
    assert not proof.different
    assert "made by md5" in caplog.text
    world.damage(
        "UPDATE {}.numbered SET f = 1.0D WHERE id = 5",
        "UPDATE {}.numbered SET tags = array('a', '', '6') WHERE id = 6",
        "DELETE FROM {}.named WHERE name = 'k7'",
        "INSERT INTO {0}.keyless SELECT * FROM {0}.keyless WHERE a = 8 AND b = '2' LIMIT 1",
    )
    found = {each.table: each for each in world.verify(keys_shown=5).tables}
    numbers = {
        name: (each.differences.missing, each.differences.surplus, each.differences.different)
        for name, each in found.items()
        if each.differences is not None
    }
    assert numbers == {
        "public.numbered": (0, 0, 2),
        "public.named": (1, 0, 0),
        "public.keyless": (0, 1, 0),
    }
    keys = [
        sorted(json.loads(key)[column] for key in of_table.keys)
        for name, column in (("numbered", "id"), ("named", "name"))
        if (of_table := found[f"public.{name}"].differences) is not None
    ]
    assert keys == [[5, 6], ["k7"]]
