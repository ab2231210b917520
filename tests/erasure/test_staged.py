"""Staged batches without the rows: the same names, new files, and nothing left of the old ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.sealed import lost_files, sealed_batches
from airflow_provider_pgoutput.capture.staging.sealed_copies import (
    SealedCopy,
    find_seals,
    write_seals,
)
from airflow_provider_pgoutput.crash_points import watched
from airflow_provider_pgoutput.erasure.claim import claimed
from airflow_provider_pgoutput.erasure.rows import AskedTable
from airflow_provider_pgoutput.erasure.staged import StagedErasure, erase_staged
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, SlotBusy
from tests.apply.build import Source, column

if TYPE_CHECKING:
    from pathlib import Path

    from tests.apply.build import Relation

CANARY = "canary"
#: That of ``Source``.
SYSTEM = "7301"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "staging", "s")


@pytest.fixture
def people(source: Source) -> Relation:
    """Five people of whom number three is the canary."""
    made = source.table(
        "people", (column("id"), column("name", "string")), key=("id",), toast=("name",)
    )
    for number in range(1, 6):
        made.insert(number, CANARY if number == 3 else f"name {number}")
    return made


def asked(relation: Relation, *ids: int) -> AskedTable:
    rows: Any = tuple({"id": each} for each in ids)
    shape = Shape.of(relation.version)
    name, oid = relation.full_name, relation.oid
    return AskedTable(name, oid, frozenset(), shape, rows, None, SYSTEM)


def erased(source: Source, *tables: AskedTable) -> StagedErasure:
    with claimed(StagingArea(str(source.staging)), source.slot_name) as claim:
        return erase_staged(claim, tables)


def manifests(source: Source) -> list[Manifest]:
    area = StagingArea(str(source.staging))
    return [each.read() for each in sealed_batches(area, source.slot_name)]


def values(source: Source) -> list[dict[str, Any]]:
    """All rows of all files of the staging area."""
    files = sorted(source.staging.rglob("*.parquet"))
    return [row for each in files for row in parquet.read_table(each).to_pylist()]


def test_a_batch_keeps_its_name_and_loses_the_row(source: Source, people: Relation) -> None:
    people.update(lambda row: row["id"] == 3, {"id": 3})
    people.delete(lambda row: row["id"] == 3)
    people.truncate()
    source.copy(people)
    job = source.stage()
    people.insert(3, CANARY)
    source.copy(people)
    source.stage()
    before = manifests(source)

    digests = source.staging / layout.kept_digests_path(source.slot_name, people.oid)
    digests.parent.mkdir()
    digests.write_text("{}")

    found = erased(source, asked(people, 3))

    assert not digests.exists()
    assert (found.batches, found.rewritten, found.rows) == (2, 2, 5)
    after = manifests(source)
    assert [each.batch_id for each in after] == [each.batch_id for each in before]
    assert [each.uri(job.staging_uri) for each in after] == [
        each.uri(job.staging_uri) for each in before
    ]
    assert [each.content_id != each.batch_id for each in after] == [True, True]
    area = StagingArea(str(source.staging))
    assert [lost_files(area, each) for each in after] == [[], []]
    assert CANARY not in str(values(source))
    assert len(list(source.staging.rglob("*.parquet"))) == sum(len(each.paths) for each in after)
    assert [each.tables[0].counts for each in after] == [
        Counts(inserts=4, truncates=1),
        Counts(),
    ]
    assert erased(source, asked(people, 3)).rows == 0
    assert manifests(source) == after


def test_batches_of_an_earlier_system_are_found_by_names(source: Source, people: Relation) -> None:
    """There the table had another OID, and its OID of now was that of ``things``."""
    things = source.table("things", (column("id"), column("name", "string")), key=("id",))
    things.insert(3, "thing")
    source.stage()
    (manifest,) = manifests(source)
    oids = {people.oid: things.oid, things.oid: people.oid}
    earlier = dataclasses.replace(
        manifest,
        system_identifier="1",
        tables=tuple(
            dataclasses.replace(each, relation_oid=oids[each.relation_oid])
            for each in manifest.tables
        ),
    )
    (source.staging / manifest.path).unlink()
    source.write(earlier)
    people.insert(3, CANARY)
    things.insert(4, "thing")
    source.stage()
    found = erased(source, asked(people, 3))
    assert (found.batches, found.rows) == (2, 2)
    assert CANARY not in str(values(source))
    assert str(values(source)).count("thing") == 2


def test_a_manifest_with_another_content_than_it_says_is_refused(
    source: Source, people: Relation
) -> None:
    source.stage()
    erased(source, asked(people, 3))
    (manifest,) = manifests(source)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    for altered in (
        text.replace('"inserts": 4', '"inserts": 3'),
        text.replace(f'"sealed_as": "{manifest.batch_id}"', '"sealed_as": "x"'),
    ):
        assert altered != text
        with pytest.raises(BatchRefused, match="was altered"):
            Manifest.from_json(altered)


def test_a_row_goes_with_all_of_its_keys_or_not_at_all(source: Source, people: Relation) -> None:
    people.update(lambda row: row["id"] == 3, {"id": 30})
    people.update(lambda row: row["id"] == 30, {"name": f"{CANARY} again"})
    source.stage()
    everything = values(source)
    for given in ([3], [30]):
        with pytest.raises(ConfigurationError, match="1 staged changes give one of the rows"):
            erased(source, asked(people, *given))
        assert values(source) == everything
    assert erased(source, asked(people, 3, 30)).rows == 3
    assert CANARY not in str(values(source))
    assert len(values(source)) == 4


def test_a_table_without_a_key_is_searched_by_any_column(source: Source) -> None:
    columns = (column("person"), column("what", "string"))
    table = source.table("visits", columns, identity="f")
    for person in (3, 4, 3):
        table.insert(person, CANARY if person == 3 else "what")
    table.update(lambda row: row["person"] == 3, {"what": f"{CANARY} changed"})
    table.delete(lambda row: row["person"] == 3)
    source.stage()
    rows: Any = ({"person": 3},)
    shape = Shape.of(table.version)
    given = AskedTable(table.full_name, table.oid, frozenset(), shape, rows, None, SYSTEM)
    assert erased(source, given).rows == 4
    assert [row["n0"] for row in values(source)] == [4]


def test_each_version_is_searched_in_its_own_type(source: Source, people: Relation) -> None:
    people.alter((column("name", "string"), column("id", "long")))
    people.insert(CANARY, 9)
    source.stage()
    assert erased(source, asked(people, 3, 9)).rows == 2
    assert CANARY not in str(values(source))


def test_a_damaged_manifest_stops_it_before_anything_is_changed(
    source: Source, people: Relation
) -> None:
    source.stage()
    people.insert(6, "six")
    job = source.stage()
    file = source.staging / job.manifest_uri.removeprefix(f"{job.staging_uri}/")
    file.write_text(file.read_text()[:-9])
    with pytest.raises(BatchRefused, match="not a manifest"):
        erased(source, asked(people, 3))
    assert CANARY in str(values(source))


@pytest.mark.parametrize("point", ["erase.after_staged_files", "erase.after_manifest"])
def test_after_a_kill_the_next_one_finishes(source: Source, people: Relation, point: str) -> None:
    class Killed(Exception):
        pass

    def kill(reached: str) -> None:
        if reached == point:
            raise Killed

    source.stage()
    with crash_points.watched(kill), pytest.raises(Killed):
        erased(source, asked(people, 3))
    assert CANARY in str(values(source))
    assert len(list(source.staging.rglob("*.parquet"))) == 2
    erased(source, asked(people, 3))
    assert CANARY not in str(values(source))
    assert len(list(source.staging.rglob("*.parquet"))) == 1


def test_a_copy_that_waits_for_its_batch_is_given_up(source: Source, people: Relation) -> None:
    source.copy(people)
    source.stage()
    (manifest,) = manifests(source)
    area = StagingArea(str(source.staging))
    for sealed in sealed_batches(area, source.slot_name):
        sealed.remove()
    (version,) = manifest.tables[0].versions
    copy = next(each for each in version.files if each.kind == "copy")
    other = dataclasses.replace(copy, path=copy.path.replace("copy-", "changes-"))
    start = Lsn(0x99)
    for oid, file in ((people.oid, copy), (people.oid + 1, other)):
        size = (source.staging / file.path).stat().st_size
        files = (dataclasses.replace(file, size_bytes=size),)
        made = SealedCopy(oid, start, "f", files, (), Counts())
        write_seals(area, source.slot_name, start, [made])
    found = erased(source, asked(people, 3))
    assert found.copies == 1
    assert [copy.relation_oid for copy in find_seals(area, source.slot_name, start)] == [
        people.oid + 1
    ]
    # A task at work may have taken the copy over. What no batch names goes with the prune task.
    assert (source.staging / copy.path).exists()
    # What another table's copy needs stays, and is not reported.
    assert (source.staging / other.path).exists()
    assert found.remains == [
        "1 files of attempts that sealed no batch, until the prune task deletes them"
    ]


def test_files_that_a_batch_names_stay_although_a_seal_names_them_too(
    source: Source, people: Relation
) -> None:
    """A stage task died after its manifest, and before it deleted the seals of its copies."""
    source.copy(people)
    source.stage()
    (manifest,) = manifests(source)
    area = StagingArea(str(source.staging))
    (version,) = manifest.tables[0].versions
    files = tuple(each for each in version.files if each.kind == "copy")
    sealed = SealedCopy(people.oid, manifest.start_lsn, "f", files, (), Counts())
    write_seals(area, source.slot_name, manifest.start_lsn, [sealed])
    # No row has this key, so no file is written anew.
    assert erased(source, asked(people, 99)).rows == 0
    assert lost_files(area, manifest) == []


def test_the_erasure_that_began_last_goes_on_alone(source: Source, people: Relation) -> None:
    source.stage()
    area = StagingArea(str(source.staging))

    def begin_another(reached: str) -> None:
        if reached == "erase.after_staged_files":
            area.write_whole(layout.erasure_claim_path(source.slot_name), b"another")

    before = manifests(source)
    with watched(begin_another), pytest.raises(SlotBusy, match="Another erasure"):
        erased(source, asked(people, 3))
    assert manifests(source) == before
    assert lost_files(area, before[0]) == []
    # The claim of the other one is not taken away.
    assert area.read(layout.erasure_claim_path(source.slot_name)) == b"another"
    assert erased(source, asked(people, 3)).rows == 1
    assert area.sizes([layout.erasure_claim_path(source.slot_name)]) == [None]


@pytest.mark.parametrize("change", ["pruned", "replaced"])
def test_a_batch_that_changes_meanwhile(source: Source, people: Relation, change: str) -> None:
    """It is not brought back, and what somebody else wrote is not lost."""
    source.stage()
    area = StagingArea(str(source.staging))
    (sealed,) = sealed_batches(area, source.slot_name)
    other = dataclasses.replace(sealed.read(), sealed_as=sealed.read().batch_id, database="other")

    def change_it(reached: str) -> None:
        if reached != "erase.after_staged_files":
            return
        if change == "pruned":
            sealed.remove()
        else:
            area.write_whole(sealed.path, other.to_json().encode())

    with watched(change_it):
        if change == "pruned":
            assert erased(source, asked(people, 3)).rows == 0
            assert sealed_batches(area, source.slot_name) == []
        else:
            with pytest.raises(SlotBusy, match="was replaced meanwhile"):
                erased(source, asked(people, 3))
            assert manifests(source) == [other]
