"""A file of a table is missing or damaged: the verification says so, and proves the other tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.errors import LakeDiffers, LakeUnavailable
from airflow_provider_pgoutput.proof.files import lake_damage
from airflow_provider_pgoutput.proof.files.lake_damage import DataFileFailure, damage
from airflow_provider_pgoutput.proof.verify import refuse_differences
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

    from airflow_provider_pgoutput.proof.report import Proof
    from tests.proof.worlds import World

TABLES = ("whole", "gone", "cut", "overwritten", "undecodable", "deletes", "manifest", "metadata")


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p",), write_mode="merge-on-read")
    world.sql(
        "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, v text);" for name in TABLES)
        + "CREATE PUBLICATION p FOR ALL TABLES;"
        + "".join(
            f"INSERT INTO {name} SELECT i, repeat(i::text, 50) FROM generate_series(1, 2000) i;"
            for name in TABLES
        )
    )
    world.run()
    world.sql("".join(f"DELETE FROM {name} WHERE id < 5;" for name in TABLES))
    world.run()
    return world


def loaded(world: World, name: str) -> Table:
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    return catalog.load_table((world.pipeline.namespace, name))


def path_of(uri: str) -> Path:
    return Path(urlsplit(uri).path)


def largest_file(table: Table) -> Path:
    tasks = table.scan().plan_files()
    return path_of(max(tasks, key=lambda each: each.file.record_count).file.file_path)


def in_the_middle(file: Path) -> None:
    """Other bytes in the column chunks; the file still ends as a Parquet file of the same size."""
    content = bytearray(file.read_bytes())
    begin, end = len(content) // 8, len(content) // 2
    content[begin:end] = bytes(end - begin)
    file.write_bytes(content)


def damage_each(world: World) -> None:
    largest_file(loaded(world, "gone")).unlink()
    file = largest_file(loaded(world, "cut"))
    file.write_bytes(file.read_bytes()[:-20])
    file = largest_file(loaded(world, "overwritten"))
    file.write_bytes(bytes(file.stat().st_size))
    in_the_middle(largest_file(loaded(world, "undecodable")))
    (of_deletes,) = {
        each.file_path
        for task in loaded(world, "deletes").scan().plan_files()
        for each in task.delete_files
    }
    path_of(of_deletes).unlink()
    table = loaded(world, "manifest")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path_of(snapshot.manifests(table.io)[0].manifest_path).unlink()
    path_of(loaded(world, "metadata").metadata_location).unlink()


def found_in(proof: Proof) -> dict[str, Any]:
    return {each.table.removeprefix("public."): each for each in proof.tables}


def test_a_damaged_table_is_named_and_the_others_are_proven(world: World) -> None:
    whole = found_in(world.verify())
    assert all(each.is_equal for each in whole.values())
    damage_each(world)
    proof = world.verify()
    found = found_in(proof)
    assert found["whole"].is_equal
    says = {name: str(each.not_compared) for name, each in found.items() if name != "whole"}
    assert all(each.startswith("TableDamaged: The file ") for each in says.values()), says
    for name in ("gone", "deletes", "manifest", "metadata"):
        assert says[name].endswith(" of the table is missing."), says[name]
    assert " in place of " in says["cut"]
    assert says["overwritten"].endswith(" of the table is no Parquet file any more.")
    assert says["undecodable"].endswith(" of the table cannot be decoded.")
    assert ".metadata.json of the table" in says["metadata"]
    assert not any("/" in each for each in says.values()), "folders may have values in their names"
    with pytest.raises(LakeDiffers, match=r"TableDamaged: The file \S+ of the table is missing"):
        refuse_differences(world.request(), proof)


def test_a_file_that_is_not_the_tables_own_blames_no_table(world: World) -> None:
    """It lies elsewhere, as ``add_files`` leaves it. Perhaps only this store is out."""
    table = loaded(world, "whole")
    file = largest_file(table)
    elsewhere = file.with_name("elsewhere.parquet")
    elsewhere.write_bytes(file.read_bytes())
    outside = world.pipeline.staging / "outside.parquet"
    elsewhere.rename(outside)
    world.pipeline.spark.sql(
        f"CALL lake.system.add_files('{world.pipeline.namespace}.whole', '`parquet`.`{outside}`')"
    )
    outside.unlink()
    with pytest.raises(LakeUnavailable):
        world.verify(tables=["public.whole"])


def test_a_snapshot_that_is_gone_and_an_encrypted_table_blame_no_file(world: World) -> None:
    """Such a snapshot expired while it was read. Of an encrypted table the store has other sizes."""
    table = loaded(world, "gone")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    failure = DataFileFailure(next(iter(table.scan().plan_files())))
    failure.__cause__ = FileNotFoundError()
    largest_file(table).unlink()
    found = damage(table, snapshot.snapshot_id, "gone", failure)
    assert found is not None
    assert found.message.endswith("is missing.")
    assert damage(table, snapshot.snapshot_id + 1, "gone", failure) is None
    with table.transaction() as change:
        change.set_properties({"encryption.key-id": "any"})
    assert damage(table, snapshot.snapshot_id, "gone", failure) is None


def test_a_store_that_falls_silent_while_a_file_is_decoded_blames_no_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loaded(world, "undecodable")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    failure = DataFileFailure(next(iter(table.scan().plan_files())))
    failure.__cause__ = OSError()
    in_the_middle(largest_file(table))
    assert damage(table, snapshot.snapshot_id, "t", failure) is not None

    class Silent:
        """A stream of a store that gives the footer, and then nothing."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def read(self, size: int = -1) -> bytes:
            if self.tell() < 1000:
                raise OSError
            found: bytes = self._stream.read(size)
            return found

        def seek(self, offset: int, whence: int = 0) -> int:
            return int(self._stream.seek(offset, whence))

        def tell(self) -> int:
            return int(self._stream.tell())

    watched = lake_damage._Watched
    monkeypatch.setattr(
        lake_damage, "_Watched", lambda stream: watched(cast("Any", Silent(stream)))
    )
    assert damage(table, snapshot.snapshot_id, "t", failure) is None
