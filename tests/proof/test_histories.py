"""The current versions of a history are compared with the source, and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.proof.repair import repair
from airflow_provider_pgoutput.proof.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_TABLES = """
CREATE TABLE prices (id int PRIMARY KEY, v text, big text);
ALTER TABLE prices ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE prices, whole;
INSERT INTO prices SELECT i, 'v', repeat(md5(i::text), 200) FROM generate_series(1, 9) i;
INSERT INTO whole SELECT i, 'v' FROM generate_series(1, 9) i;
"""


def test_current_versions_are_compared_and_repaired(new_world: Callable[..., World]) -> None:
    options = {f"public.{name}": TableOptions(mode="history") for name in ("prices", "whole")}
    world = new_world(("p",), table_options=options)
    world.sql(_TABLES)
    world.run()
    world.sql(
        "UPDATE prices SET v = 'changed' WHERE id < 4; UPDATE prices SET id = 20 WHERE id = 5;"
        "DELETE FROM prices WHERE id = 6; UPDATE whole SET id = 10 - id"
    )
    world.run()
    assert [str(each) for each in world.verify().tables if not each.is_equal] == []
    count = "count(*) AS versions, count_if(_pgoutput_is_current) AS current"

    def one(table: str, selected: str) -> Any:
        world.refresh()
        name = f"lake.{world.pipeline.namespace}.{table}"
        return tuple(world.pipeline.spark.sql(f"SELECT {selected} FROM {name}").collect()[0])

    assert one("prices", count) == (13, 8)
    assert one("whole", count) == (18, 9)
    # The times are the server's: copied rows have one, too.
    of_copies = (
        "count_if(_pgoutput_seq = -1), count_if(_pgoutput_valid_from IS NULL),"
        " count_if(_pgoutput_valid_from > _pgoutput_valid_to),"
        " count_if(length(big) = 6400)"
    )
    assert one("prices", of_copies) == (9, 0, 0, 13)
    world.damage(
        "UPDATE {}.prices SET v = 'damaged' WHERE id = 1 AND _pgoutput_is_current",
        "UPDATE {}.prices SET v = 'damaged' WHERE id = 2 AND NOT _pgoutput_is_current",
        "UPDATE {}.prices SET _pgoutput_is_current = false WHERE id = 7",
        "UPDATE {}.whole SET v = 'damaged' WHERE id = 3 AND _pgoutput_is_current",
    )
    request = world.request(on_difference=REPAIR)
    proof = verify(request, world.run)
    found = {each.table: each.differences for each in proof.tables}
    prices, whole = found["public.prices"], found["public.whole"]
    assert prices is not None
    assert (prices.missing, prices.surplus, prices.different) == (1, 0, 1)
    assert whole is not None
    assert whole.different == 1
    second = repair(request, proof, run=world.run, wait=world.run)
    assert second is not None
    assert [str(each) for each in second.tables if not each.is_equal] == []
    assert one("prices", count) == (15, 8)
    assert one("whole", count) == (19, 9)
