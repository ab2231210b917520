"""Each run proves the next part of a table: a cycle covers each key, and damage is found in its turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.answers import SUCCEED
from airflow_provider_pgoutput.batch.checkpoint import PROOFS, PROOFS_TABLE
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table
from airflow_provider_pgoutput.proof.key_ranges import KeyRanges
from airflow_provider_pgoutput.proof.record import last_shares, newest_proofs, record_proof
from airflow_provider_pgoutput.proof.share import Share, Turn
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.proof.report import Proof
    from tests.proof.worlds import World

_PARTS = 4
_TABLES = """
CREATE TABLE numbers (id bigint PRIMARY KEY, v text);
CREATE TABLE pairs (shop int, code text, v text, PRIMARY KEY (shop, code));
CREATE TABLE names (code text PRIMARY KEY, v text);
CREATE TABLE keyless (a int, b text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE empty (id int PRIMARY KEY, v text);
CREATE TABLE greatest (id bigint PRIMARY KEY, v text);
INSERT INTO numbers SELECT i * 7 - 500, 'v' FROM generate_series(1, 400) i;
INSERT INTO pairs SELECT i % 9, 'c' || i, 'v' FROM generate_series(1, 400) i;
INSERT INTO names SELECT 'c' || i, 'v' FROM generate_series(1, 400) i;
INSERT INTO keyless SELECT i % 50, 'b' FROM generate_series(1, 400) i;
INSERT INTO greatest VALUES (9223372036854775807, 'v');
CREATE PUBLICATION p FOR TABLE numbers, pairs, names, keyless, empty, greatest;
"""
_NAMES = ("numbers", "pairs", "names", "keyless")


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p",))
    world.sql(_TABLES)
    world.run()
    return world


def _run(world: World, **more: Any) -> Proof:
    """One run of the verification, with its record."""
    proof = world.verify(share=1 / _PARTS, on_difference=SUCCEED, **more)
    record_proof(_catalog(world), world.pipeline.namespace, proof)
    return proof


def _catalog(world: World) -> Any:
    return load_catalog(CATALOG, **world.pipeline.catalog_properties)


def _numbers(proof: Proof) -> set[int]:
    return {each.share.number for each in proof.tables if each.share is not None}


def test_a_cycle_covers_each_row_once(world: World) -> None:
    wanted = {**dict.fromkeys(_NAMES, 400), "greatest": 1}
    rows = dict.fromkeys(wanted, 0)
    for number in range(1, _PARTS + 1):
        proof = _run(world)
        assert [str(each) for each in proof.tables if not each.is_equal] == []
        assert _numbers(proof) == {number}
        for each in proof.tables:
            name = each.table.removeprefix("public.")
            assert each.source is not None
            if name != "empty":
                assert each.source.rows < 400, name
                rows[name] += each.source.rows
    assert rows == wanted
    assert _numbers(_run(world)) == {1}, "the next cycle"


def test_damage_is_found_in_one_part_and_stays_known(world: World) -> None:
    """Also rows under keys that the source never had, below all others and above them."""
    world.damage(
        "INSERT INTO {}.numbers VALUES (-100000, 'surplus'), (100000, 'surplus')",
        "UPDATE {}.numbers SET v = 'damaged' WHERE id = 900",
        "INSERT INTO {}.pairs VALUES (-7, 'x', 'surplus'), (5, 'y', 'surplus')",
        "DELETE FROM {}.names WHERE code = 'c7'",
        "INSERT INTO {}.keyless VALUES (1, 'b')",
        "INSERT INTO {}.empty VALUES (1, 'surplus')",
    )
    wrong = {name: [0, 0, 0] for name in (*_NAMES, "empty")}
    for _ in range(_PARTS):
        for each in _run(world).tables:
            name = each.table.removeprefix("public.")
            if each.differences is not None and (name != "empty" or each.share == Share(1, 4)):
                found = each.differences
                for place, count in enumerate((found.missing, found.surplus, found.different)):
                    wrong[name][place] += count
    assert wrong == {
        "numbers": [0, 2, 1],
        "pairs": [0, 2, 0],
        "names": [1, 0, 0],
        "keyless": [0, 1, 0],
        "empty": [0, 1, 0],
    }
    newest = newest_proofs(_catalog(world), world.pipeline.namespace, world.pipeline.slot_name)
    assert {name for name, each in newest.items() if each.is_equal is False} == {
        f"public.{name}" for name in wrong
    }
    assert "different (part " in str(newest["public.numbers"])


def test_rows_that_come_during_a_cycle_are_in_a_part_of_it() -> None:
    """Keys grow between the parts. No key that was there at the beginning is left out."""
    chance = random.Random(7)  # noqa: S311 - a test has to repeat itself
    for _ in range(200):
        least, greatest = chance.randint(-50, 50), chance.randint(51, 200)
        of, last, covered = chance.randint(2, 9), None, -1_000
        wanted = greatest
        while True:
            turn = Turn.following(1 / of, last)
            first, through = turn.bounds(least, greatest)
            assert covered == -1_000 if first is None else first == covered + 1
            last = turn.done(through)
            if through is None:
                break
            covered = through
            greatest += chance.choice((0, 0, 30))
            least += chance.choice((0, 5))
        assert turn.number == of
        assert wanted <= greatest


@pytest.mark.parametrize("after", [None, 2**63 - 1], ids=["anew", "stuck in an early version"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_parts_end_at_the_greatest_int8(rows: int, after: int | None) -> None:
    """Fewer keys than parts, and no number behind them."""
    keys = list(range(2**63 - rows, 2**63))
    batch = pa.RecordBatch.from_pydict({"id": pa.array(keys, pa.int64())})
    last, found = None if after is None else Share(1, 4, after), []
    while last is None or last.number < last.of:
        turn = Turn.following(1 / 4, last)
        bounds = turn.bounds(keys[0], keys[-1])
        least = keys[0] if bounds[0] is None else bounds[0]
        inside = KeyRanges.between(("id", "id"), least, keys[-1], bounds).whole.mask(batch)
        found += [key for key, is_inside in zip(keys, inside.tolist(), strict=True) if is_inside]
        last = turn.done(bounds[1])
    assert found == (keys if after is None else keys[-1:])


def test_ranges_have_the_same_rows_on_both_sides_of_their_bounds() -> None:
    for bounds in ((None, None), (-3, None), (None, 40_000), (-3, 40_000)):
        ranges = KeyRanges.between(("id", "id"), -3, 40_000, bounds)
        keys = [None, *range(-10, 40_020)]
        rows = pa.RecordBatch.from_pydict({"id": pa.array(keys, pa.int64())})
        inside = ranges.whole.mask(rows)
        for key, is_inside in zip(keys, inside.tolist(), strict=True):
            first, last = bounds
            wanted = first is None if key is None else True
            if key is not None:
                wanted = (first is None or key >= first) and (last is None or key <= last)
            assert is_inside == wanted, (bounds, key)


def test_a_record_of_an_early_version_gets_the_columns(world: World) -> None:
    catalog, namespace = _catalog(world), f"{world.pipeline.namespace}_early"
    catalog.create_namespace_if_not_exists(namespace)
    early = [each for each in PROOFS if not each[0].startswith("share_")]
    append_to_own_table(catalog, namespace, PROOFS_TABLE, early, [{"slot_name": "other"}])
    slot_name, keyless = world.pipeline.slot_name, {"public.keyless"}
    assert last_shares(catalog, namespace, slot_name, 2, tables=keyless, goes_on=False) == {}
    record_proof(catalog, namespace, world.verify(share=0.5, tables=["public.keyless"]))
    found = last_shares(catalog, namespace, slot_name, 2, tables=keyless, goes_on=True)
    assert found["public.keyless"].of == 2


@pytest.mark.parametrize("share", [0, 1.5, -1])
def test_a_share_that_is_none_is_refused(world: World, share: float) -> None:
    with pytest.raises(ConfigurationError, match="share"):
        world.request(share=share)
