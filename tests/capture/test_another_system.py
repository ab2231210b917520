"""Masks and filters when the lake goes on from another system, where OIDs may be those of other tables.

There is one server. The tests take the checkpoint of one of its batches, and write another system identifier
and other OIDs into it. ``tests/proof/test_adopted_migration.py`` has two real servers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, SourceChanged
from tests.capture.copy.test_difference import Equal
from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.capture.test_masks import CANARY, SECRET, hashed, plain_places

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

MASKS = {"public.users.email": "hash"}
FILTERS = {"public.orders": "region = 'eu'"}
_EARLIER = "1"


def of_earlier_system(checkpoint: Checkpoint, oids: dict[int, int]) -> Checkpoint:
    """The checkpoint as another system would have left it, with these OIDs in place of those of now."""

    def moved(found: Any) -> dict[int, Any]:
        return {oids.get(oid, oid): each for oid, each in found.items()}

    return dataclasses.replace(
        checkpoint,
        system_identifier=_EARLIER,
        tables=moved(checkpoint.tables),
        shapes=moved(checkpoint.shapes),
    )


def moved_lake(source: Source, oids: str) -> dict[str, Any]:
    """A lake with a masked table and a filtered one; return the request of the adoption.

    :param oids: ``other``: all OIDs are new. ``swapped``: each table has the OID that the other one had.
        ``kept``: all OIDs are as before, as after ``pg_upgrade``.
    """
    source.execute(
        "CREATE TABLE users(id int PRIMARY KEY, plain text, email text)",
        "CREATE TABLE orders(id int PRIMARY KEY, note text, region text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        f"INSERT INTO users VALUES (1, 'p', '{CANARY} one')",
        "INSERT INTO orders VALUES (1, 'n', 'eu'), (2, 'n', 'us')",
        "CREATE PUBLICATION moved FOR TABLE users, orders",
    )
    request: dict[str, Any] = {
        "publication_names": ("moved",),
        "columns": MASKS,
        "mask_secret": SECRET,
        "filters": FILTERS,
    }
    first = source.stage(**request)
    users, orders = (
        next(each.relation_oid for each in first.tables if each.table_name == name)
        for name in ("users", "orders")
    )
    new_oids = {
        "other": {users: users + 100_000, orders: orders + 100_000},
        "swapped": {users: orders, orders: users},
        "kept": {},
    }[oids]
    source.drop_slot(source.slot_name)
    # The new server is past the lake.
    source.execute("CREATE TABLE past()")
    return {
        **request,
        "checkpoint": of_earlier_system(checkpoint_with_shapes(first), new_oids),
        "on_slot_lost": "difference",
        "lake_comparison": Equal(),
        "adopted_system": source.server().system_identifier,
    }


def refused(source: Source, message: str, **request: Any) -> str:
    """The error of a run, which made nothing."""
    before = source.manifests()
    with pytest.raises(ConfigurationError, match=message) as error:
        source.stage(**request)
    assert source.confirmed() is None, "no slot was made"
    assert source.manifests() == before
    assert plain_places(source.staging) == []
    return str(error.value)


@pytest.mark.parametrize("oids", ["other", "swapped", "kept"])
def test_what_the_adoption_forgot_is_refused(source: Source, oids: str) -> None:
    """An adoption has a DAG of its own, which may lack masks. Then its copies would have plain values."""
    request = moved_lake(source, oids)
    for columns in ({}, {"public.users.email": "redact"}, {**MASKS, "public.users.plain": "hash"}):
        refused(source, "columns wants it", **{**request, "columns": columns})
    refused(source, "secret of the hash", **{**request, "mask_secret": SECRET + b"another"})
    for filters in ({}, {"public.orders": "region = 'us'"}):
        refused(source, r"filter.*public\.orders", **{**request, "filters": filters})
    batch = source.stage(**request)
    compared = request["lake_comparison"].compared
    if oids == "kept":
        assert compared == ["public.orders", "public.users"]
        return
    assert compared == ["public.orders"], "it has no masks"
    (user,) = source.copied(batch, "public.users")
    assert user["email"] == hashed(f"{CANARY} one")
    assert plain_places(source.staging) == []


@pytest.mark.parametrize("oids", ["other", "swapped"])
def test_who_wants_other_masks_says_so(source: Source, oids: str) -> None:
    request = moved_lake(source, oids)
    batch = source.stage(
        **{**request, "columns": {}, "filters": {}},
        copy_tables=("public.users", "public.orders"),
    )
    assert source.copied(batch, "public.users")[0]["email"] == f"{CANARY} one"
    assert len(source.copied(batch, "public.orders")) == 2


@pytest.mark.parametrize("oids", ["other", "swapped", "kept"])
def test_a_masked_column_got_another_name_on_the_way(source: Source, oids: str) -> None:
    request = moved_lake(source, oids)
    source.execute("ALTER TABLE users RENAME email TO mail")
    refused(source, "names no published column", **request)
    found = refused(source, "It may be that column|was called email", **{**request, "columns": {}})
    assert "'public.users.mail': 'hash'" in found
    batch = source.stage(**{**request, "columns": {"public.users.mail": "hash"}})
    assert source.copied(batch, "public.users")[0]["mail"] == hashed(f"{CANARY} one")


@pytest.mark.parametrize("oids", ["other", "swapped", "kept"])
def test_tables_got_other_names_on_the_way(source: Source, oids: str) -> None:
    """The lake knows neither new name. The new server lacks the table with masks and that with a filter."""
    request = moved_lake(source, oids)
    source.execute("ALTER TABLE users RENAME TO persons", "ALTER TABLE orders RENAME TO sales")
    refused(source, "does not publish public.users", **request)
    refused(source, "does not publish public.users", **{**request, "columns": {}})
    request["columns"] = {"public.persons.email": "hash"}
    refused(source, "does not publish public.orders", **{**request, "filters": {}})
    request["filters"] = {"public.sales": "region = 'eu'"}
    batch = source.stage(**request)
    (user,) = source.copied(batch, "public.persons")
    assert user["email"] == hashed(f"{CANARY} one")
    assert [each["id"] for each in source.copied(batch, "public.sales")] == [1]


def test_a_new_table_beside_them_needs_no_word(source: Source) -> None:
    request = moved_lake(source, "other")
    source.execute("CREATE TABLE new(id int PRIMARY KEY)", "ALTER PUBLICATION moved ADD TABLE new")
    assert "new" in {each.table_name for each in source.stage(**request).tables}


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("oids", ["swapped", "kept"])
def test_a_batch_that_waits_is_judged_by_names(source: Source, oids: str, is_masked: bool) -> None:
    """A sealed batch of the earlier system comes first. If it has plain values, it is refused."""
    request = moved_lake(source, oids)
    masks = {} if is_masked else {"columns": {}, "copy_tables": ("public.users",)}
    batch = source.stage(**{**request, **masks})
    source.drop_slot(source.slot_name)
    oids_now = {each.table_name: each.relation_oid for each in batch.tables}
    swapped = {"users": oids_now["orders"], "orders": oids_now["users"]}
    waits = dataclasses.replace(
        batch,
        system_identifier=_EARLIER,
        adopted_from=(),
        tables=tuple(
            dataclasses.replace(each, relation_oid=swapped[each.table_name])
            if oids == "swapped"
            else each
            for each in batch.tables
        ),
    )
    (source.staging / batch.path).unlink()
    (source.staging / waits.path).write_bytes(waits.to_json().encode())
    if is_masked:
        assert source.stage(**request).batch_id == waits.batch_id
        return
    with pytest.raises(ConfigurationError, match="An earlier run sealed the next batch"):
        source.stage(**request)


def test_an_oid_of_the_earlier_system_is_no_table_of_this_one(source: Source) -> None:
    """After the adoption the lake still knows an OID of the earlier system, and a new table gets this OID."""
    request = moved_lake(source, "other")
    first = source.stage(**request)
    source.execute(
        "CREATE TABLE new(id int PRIMARY KEY, a text, b text)",
        "INSERT INTO new VALUES (1, 'a', 'b')",
        "ALTER PUBLICATION moved ADD TABLE new",
    )
    ((oid,),) = source.execute("SELECT 'new'::regclass::oid::int")
    lake, before = checkpoint_with_shapes(first), request["checkpoint"]
    (users,) = [each for each, name in before.tables.items() if name == "public.users"]
    stale = dataclasses.replace(
        lake,
        tables={**(lake.tables or {}), oid: "public.gone"},
        shapes={**lake.shapes, oid: before.shapes[users]},
        earlier_oids=frozenset({oid}),
    )
    later = {
        name: request[name] for name in ("publication_names", "columns", "mask_secret", "filters")
    }
    batch = source.stage(**later, checkpoint=stale)
    (row,) = source.copied(batch, "public.new")
    assert row == {"id": 1, "a": "a", "b": "b"}
    # Without ``earlier_oids`` it is taken for the earlier table, whose third column is masked.
    with pytest.raises(ConfigurationError, match="was called email"):
        source.stage(**later, checkpoint=dataclasses.replace(stale, earlier_oids=frozenset()))


def test_a_pipeline_that_nobody_moved_says_so(source: Source) -> None:
    """The error is about the other system, and not about masks of other tables."""
    request = moved_lake(source, "swapped")
    del request["adopted_system"]
    with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
        source.stage(**request)
