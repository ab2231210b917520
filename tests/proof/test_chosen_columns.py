"""Tables whose columns have other names in the lake are compared with the source, and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.proof.repair import repair
from airflow_provider_pgoutput.proof.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, cust_nm text, name text);
CREATE TABLE log (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE customers, log;
INSERT INTO customers SELECT i, 'n' || i, 'v' FROM generate_series(1, 50) i;
INSERT INTO log SELECT i, 'v' || i FROM generate_series(1, 50) i;
"""
#: Two columns change their names with each other.
_RENAMED = {"id": "customer_id", "cust_nm": "name", "name": "cust_nm"}


def test_renamed_columns_are_compared_and_repaired(new_world: Callable[..., World]) -> None:
    options = {
        "public.customers": TableOptions(
            renamed_columns=_RENAMED, constant_columns={"tenant": "acme"}
        ),
        "public.log": TableOptions(
            mode="change_log", renamed_columns={"id": "number"}, constant_columns={"tenant": "acme"}
        ),
    }
    world = new_world(("p",), table_options=options)
    world.sql(_TABLES)
    world.run()
    world.sql(
        "UPDATE customers SET cust_nm = 'changed', id = id + 100 WHERE id < 4;"
        "UPDATE log SET id = id + 100 WHERE id < 4; DELETE FROM log WHERE id > 40"
    )
    world.run()
    for columns in (("cust_nm", "label"), ("name", "cust_nm")):
        world.sql(f"ALTER TABLE customers RENAME {columns[0]} TO {columns[1]}")
        world.sql("UPDATE customers SET id = id + 1000 WHERE id = (SELECT max(id) FROM customers)")
        world.run()
        assert [str(each) for each in world.verify().tables if not each.is_equal] == []
    world.damage(
        "UPDATE {}.customers SET customer_id = 7000 WHERE customer_id = 7",
        "DELETE FROM {}.customers WHERE customer_id = 8",
    )
    proof = verify(world.request(on_difference=REPAIR), world.run)
    found = {each.table: each.differences for each in proof.tables}["public.customers"]
    assert found is not None
    assert (found.missing, found.surplus, found.different) == (2, 1, 0)
    second = repair(world.request(on_difference=REPAIR), proof, run=world.run, wait=world.run)
    assert second is not None
    assert [str(each) for each in second.tables if not each.is_equal] == []
    world.refresh()
    name = f"lake.{world.pipeline.namespace}.customers"
    rows = world.pipeline.spark.sql(f"SELECT DISTINCT tenant FROM {name}").collect()
    assert [tuple(row) for row in rows] == [("acme",)]
