"""Partitions whose replica identities differ, published under the name of their root.

Random programs are staged and followed here row by row, without any code of the package. What cannot be
followed has to be refused, by an expected error, and the way on that it names has to work.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.capture.partition_programs import Program
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

Row = tuple[Any, ...]
COLUMNS = ("p", "a", "u", "v", "t")
REFUSALS = (
    "does not say which row it means|has no key|The key changed|is not within the replica identity"
)


class Copy:
    """What a lake would hold of the table ``r``, as it is followed row by row."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()

    def take(self, source: Source, manifest: Manifest) -> None:
        for table in manifest.tables:
            assert table.name == "public.r"
            if table.copy_lsn is not None:
                self.rows = Counter(_of(each, "") for each in source.copied(manifest, table.name))
            changes = source.changes(manifest, table.name)
            first = 0
            for version in table.versions:
                count = sum(each.rows for each in version.files if each.kind == "changes")
                for change in changes[first : first + count]:
                    self._change(change, version)
                first += count
            assert first == len(changes)

    def _change(self, change: dict[str, Any], version: TableVersion) -> None:
        op = change["op"]
        if op == "T":
            self.rows.clear()
            return
        names = [each.name for each in version.columns]
        old = {name: change.get(f"o{place}") for place, name in enumerate(names)}
        new = {name: change.get(name) for name in names}
        left_out = [name for place, name in enumerate(names) if change.get(f"u{place}")]
        key, is_full = version.key_columns, version.replica_identity == "f"
        if op != "I":
            assert key or is_full, "a change of a row that nothing identifies"
            if is_full:
                assert change["old_kind"] == "O"
                before = _of(old, "")
            else:
                told = old if change["old_kind"] else new
                before = self._under({name: told[name] for name in key})
            for name in left_out:
                new[name] = dict(zip(COLUMNS, before, strict=True))[name]
            assert self.rows[before] > 0, "the row is not there"
            self.rows[before] -= 1
        if op != "D":
            self.rows[_of(new, "")] += 1

    def _under(self, key: dict[str, Any]) -> Row:
        assert None not in key.values(), "a key without a value"
        found = [
            row
            for row, count in self.rows.items()
            if count and key.items() <= dict(zip(COLUMNS, row, strict=True)).items()
        ]
        assert [self.rows[each] for each in found] == [1], f"{len(found)} rows have one key"
        return found[0]


def _of(row: dict[str, Any], prefix: str) -> Row:
    return tuple(row[prefix + name] for name in COLUMNS)


def run(source: Source, seed: int) -> Counter[str]:
    """Run a program and compare after each batch; what was refused, by its message."""
    numbers = random.Random(seed)  # noqa: S311 - a test
    program = Program(numbers)
    attempt(source, [(each,) for each in program.setup])
    options: dict[str, Any] = {
        "transport": numbers.choice(("sql", "walsender")),
        "options": StreamOptions(
            binary=numbers.random() < 0.3, streaming=numbers.choice(("off", "on"))
        ),
    }
    if program.key_columns:
        options["key_columns"] = {"public.r": list(program.key_columns)}
    copy, refused = Copy(), Counter[str]()
    checkpoint: Checkpoint | None = None
    for _ in range(4):
        try:
            manifest = source.stage(**options, checkpoint=checkpoint)
        except (TableRefused, ConfigurationError) as error:
            refused[error.message] += 1
            check(error)
            manifest = went_on(source, error, numbers, program, options, checkpoint)
        copy.take(source, manifest)
        rows = source.execute(f"SELECT {', '.join(COLUMNS)} FROM r")
        assert +copy.rows == Counter(rows), difference(copy.rows, Counter(rows))
        checkpoint = checkpoint_after(manifest, checkpoint)
        if numbers.random() < 0.7:
            advance(source, manifest)
        attempt(source, list(program.changes(numbers.randrange(4, 16))))
    return refused


def checkpoint_after(manifest: Manifest, before: Checkpoint | None) -> Checkpoint:
    """What the lake would have once this batch is applied, too."""
    known = checkpoint_with_shapes(manifest)
    if before is None:
        return known
    tables = {**(before.tables or {}), **(known.tables or {})}
    return dataclasses.replace(known, tables=tables, shapes={**before.shapes, **known.shapes})


def check(error: TableRefused | ConfigurationError) -> None:
    """Demand that an error is one of those that a program may end with."""
    assert error.table == "public.r"
    assert error.advice
    assert re.search(REFUSALS, error.message), error


def advance(source: Source, manifest: Manifest) -> None:
    """Move the slot, as the third task does: announcements before it are not sent again."""
    source.execute(
        f"SELECT pg_replication_slot_advance('{source.slot_name}', '{manifest.end_lsn}')"
    )


def went_on(
    source: Source,
    error: TableRefused | ConfigurationError,
    numbers: random.Random,
    program: Program,
    options: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> Manifest:
    """Do what an error says."""
    if isinstance(error, ConfigurationError):
        source.execute(*program.all_full())
        if checkpoint is None:
            return source.stage(**options)
        return source.stage(**options, checkpoint=checkpoint, copy_tables=("public.r",))
    if numbers.random() < 0.5:
        policy = SchemaPolicy(on_unknown_default="copy")
        return source.stage(**options, checkpoint=checkpoint, schema_policy=policy)
    return source.stage(**options, checkpoint=checkpoint, copy_tables=("public.r",))


def attempt(source: Source, transactions: list[tuple[str, ...]]) -> None:
    """Run what the source lets run; a statement that it refuses takes its transaction with it."""
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for statements in transactions:
            try:
                with session.transaction():
                    for statement in statements:
                        session.execute(statement)
            except psycopg.Error:
                continue


def difference(ours: Counter[Row], theirs: Counter[Row]) -> str:
    def short(rows: Counter[Row]) -> list[Row]:
        return [(*row[:4], row[4] and len(row[4])) for row in rows.elements()]

    return f"too many {short(ours - theirs)}, missing {short(theirs - ours)}"


class Followed:
    """A table ``r`` whose batches are followed one after the other; see ``Copy``."""

    def __init__(self, source: Source, *statements: str, **options: Any) -> None:
        self.source, self.options = source, options
        self._copy = Copy()
        self._checkpoint: Checkpoint | None = None
        source.execute("DROP PUBLICATION p", *statements)

    def equals(self, *statements: str, **options: Any) -> Manifest:
        """Run statements and stage; then the copy is what the source has."""
        if statements:
            self.source.execute(*statements)
        manifest = self.source.stage(**{**self.options, "checkpoint": self._checkpoint, **options})
        self._copy.take(self.source, manifest)
        rows = Counter(self.source.execute(f"SELECT {', '.join(COLUMNS)} FROM r"))
        assert +self._copy.rows == rows, difference(self._copy.rows, rows)
        self._checkpoint = checkpoint_after(manifest, self._checkpoint)
        advance(self.source, manifest)
        return manifest

    def refused(self, match: str, *statements: str) -> str:
        """Run statements; no batch can be staged. The advice."""
        if statements:
            self.source.execute(*statements)
        with pytest.raises(TableRefused, match=match) as refusal:
            self.source.stage(**self.options, checkpoint=self._checkpoint)
        assert refusal.value.table == "public.r"
        assert refusal.value.lsn
        assert refusal.value.advice
        return refusal.value.advice


TREE = (
    (
        "CREATE TABLE r (p int NOT NULL, a int PRIMARY KEY, u int NOT NULL, v int, t text)"
        " PARTITION BY RANGE (a)"
    ),
    "CREATE UNIQUE INDEX r_u ON r (u, a)",
    "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
    # Columns in another order, and an index of its own.
    "CREATE TABLE r_1 (t text, v int, u int NOT NULL, p int NOT NULL, a int NOT NULL)",
    "CREATE UNIQUE INDEX r_1_own ON r_1 (u)",
    "ALTER TABLE r ATTACH PARTITION r_1 FOR VALUES FROM (10) TO (20)",
    "INSERT INTO r SELECT 0, g, g, 0, 'x' FROM generate_series(6, 13) g",
)
VIA_ROOT = "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)"
BY_OWN = "ALTER TABLE r_1 REPLICA IDENTITY USING INDEX r_1_own"


@pytest.mark.parametrize("transport", ["sql", "walsender"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING", "USING INDEX r_u"])
def test_c190_a_root_with_another_identity_than_its_partitions(
    source: Source, identity: str, transport: str
) -> None:
    """Also where it is given in the middle of a batch, which announces nothing."""
    followed = Followed(source, *TREE, VIA_ROOT, transport=transport)
    other = f"ALTER TABLE r REPLICA IDENTITY {identity}"
    for first, then in ((other, "SELECT"), ("SELECT", other)):
        followed.equals(first)
        manifest = followed.equals(
            "UPDATE r SET u = u + 100",
            then,
            "UPDATE r SET v = 1",
            "UPDATE r SET a = a + 10 WHERE a = 7",
            "UPDATE r SET a = a + 4 WHERE a = 12",
            "DELETE FROM r WHERE a IN (8, 11)",
            "UPDATE r SET u = u + 100, a = a - 10 WHERE a = 17",
            "UPDATE r SET u = u + 100, a = a - 4 WHERE a = 16",
            "INSERT INTO r VALUES (0, 8, 8, 0, 'x'), (0, 11, 11, 0, 'x')",
        )
        (table,) = manifest.tables
        assert {each.key_columns for each in table.versions} == {("a",)}
        followed.equals("ALTER TABLE r REPLICA IDENTITY DEFAULT")


def test_c190_a_partition_that_does_not_send_the_key_of_its_root(source: Source) -> None:
    """What it inserts is followed. Its updates are not, nor those of others that may be its."""
    followed = Followed(source, *TREE, BY_OWN, VIA_ROOT)
    followed.equals()
    followed.equals("INSERT INTO r VALUES (0, 18, 18, 0, 'x')", "DELETE FROM r WHERE a = 6")
    followed.equals("UPDATE r SET v = 1 WHERE a = 7")
    what = r"the key is \(a\), and partition public.r_1 had the replica identity \(u\) then"
    # The key changes, and the server sends no old tuple.
    advice = followed.refused(what, "UPDATE r SET a = 19 WHERE a = 12")
    assert "copy_tables=['public.r']" in advice
    followed.equals(copy_tables=("public.r",))
    followed.refused(what, "DELETE FROM r WHERE a = 13")
    followed.equals(schema_policy=SchemaPolicy(on_unknown_default="copy"))
    # The index changes: its old value alone is sent.
    followed.refused(what, "UPDATE r SET u = u + 100")
    followed.equals("ALTER TABLE r_1 REPLICA IDENTITY FULL", copy_tables=("public.r",))
    followed.equals("UPDATE r SET a = 16 WHERE a = 10", "UPDATE r SET u = u + 100")


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_c190_an_identity_that_was_changed_and_changed_back_is_noticed(
    source: Source, streaming: str
) -> None:
    """Neither the batch before nor the catalog shows it, but each announcement does."""
    followed = Followed(source, *TREE, VIA_ROOT, options=StreamOptions(streaming=streaming))
    followed.equals()
    followed.equals(BY_OWN, "ALTER TABLE r_1 REPLICA IDENTITY DEFAULT", "UPDATE r SET v = 1")
    many = "INSERT INTO r SELECT 0, 19, 19, g, repeat('x', 200) FROM generate_series(1, 1) g"
    followed.refused(
        "does not say which row",
        BY_OWN,
        many,
        "UPDATE r SET a = 18 WHERE a = 10",
        "ALTER TABLE r_1 REPLICA IDENTITY DEFAULT",
    )
    followed.equals(copy_tables=("public.r",))
    # In one transaction, and rolled back in another.
    turn = (
        "DO $$ BEGIN UPDATE r SET v = 2; ALTER TABLE r_1 REPLICA IDENTITY USING INDEX r_1_own;"
        " UPDATE r SET a = 16 WHERE a = 18; {} EXCEPTION WHEN raise_exception THEN NULL; END $$"
    )
    followed.equals(turn.format("RAISE EXCEPTION '';"))
    followed.refused(
        "does not say which row", turn.format("ALTER TABLE r_1 REPLICA IDENTITY DEFAULT;")
    )
    followed.equals(copy_tables=("public.r",))


def test_c190_a_key_that_all_partitions_send_is_chosen(source: Source) -> None:
    """The first key of the root that all of them hold: here neither its identity nor its primary key."""
    followed = Followed(
        source,
        "CREATE TABLE r (p int, a int, u int NOT NULL, v int, t text, PRIMARY KEY (p, a))"
        " PARTITION BY LIST (p)",
        "CREATE UNIQUE INDEX r_u ON r (p, u)",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES IN (0)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
        "ALTER TABLE r_0 REPLICA IDENTITY USING INDEX r_0_p_u_idx",
        "ALTER TABLE r_1 REPLICA IDENTITY USING INDEX r_1_p_u_idx",
        "INSERT INTO r SELECT g % 2, g, g, 0, 'x' FROM generate_series(1, 8) g",
        VIA_ROOT,
    )
    assert followed.equals().tables[0].versions[0].key_columns == ("p", "u")
    followed.equals("UPDATE r SET a = a + 1", "DELETE FROM r WHERE u < 3", "UPDATE r SET p = 1 - p")
    followed.equals(
        "ALTER TABLE r_1 REPLICA IDENTITY FULL", "UPDATE r SET u = u + 1 WHERE u % 2 = 0"
    )
    # No key is in all old tuples, but those of the second partition hold the key that they changed.
    followed.equals("ALTER TABLE r_1 REPLICA IDENTITY DEFAULT", "UPDATE r SET a = -a")
    followed.refused("does not say which row", "UPDATE r SET a = -a", "UPDATE r SET a = -a")
    followed.equals("ALTER TABLE r_0 REPLICA IDENTITY DEFAULT", copy_tables=("public.r",))
    followed.equals("UPDATE r SET u = -u")


def test_c190_a_column_list_whose_numbers_are_others_in_a_partition(source: Source) -> None:
    """The server announces other columns of such a partition; the catalog has its identity."""
    listed = "CREATE PUBLICATION p FOR TABLE r (p, a, u, v, t) WITH (publish_via_partition_root)"
    tree = [each.replace("a int PRIMARY KEY", "x int, a int PRIMARY KEY") for each in TREE[:-1]]
    tree = [each.replace("(t text, v", "(t text, x int, v") for each in tree]
    rows = "INSERT INTO r SELECT 0, 0, g, g, 0, 'x' FROM generate_series(6, 13) g"
    followed = Followed(source, *tree, rows, listed)
    followed.equals()
    followed.equals(
        "UPDATE r SET a = 18 WHERE a = 13",
        "UPDATE r SET v = 1",
        "DELETE FROM r WHERE u = 12",
    )
    followed.refused("does not say which row", BY_OWN, "UPDATE r SET a = 19 WHERE a = 11")
    followed.equals(copy_tables=("public.r",))


def test_c190_prepared_transactions_rely_on_announcements_before_them(source: Source) -> None:
    followed = Followed(source, *TREE, VIA_ROOT, options=StreamOptions(two_phase=True))
    followed.equals()
    source.execute(
        "UPDATE r SET v = 1",
        BY_OWN,
        "INSERT INTO r VALUES (0, 18, 18, 0, 'x')",
        "BEGIN; UPDATE r SET a = 17 WHERE a = 12; PREPARE TRANSACTION 'one'",
    )
    try:
        followed.equals()
    finally:
        source.execute("COMMIT PREPARED 'one'")
    followed.refused("does not say which row")
    followed.equals("ALTER TABLE r_1 REPLICA IDENTITY DEFAULT", copy_tables=("public.r",))


def test_c191_primary_keys_of_partitions_alone(source: Source) -> None:
    """The root has none, so the key is one that the owner names."""
    followed = Followed(
        source,
        "CREATE TABLE r (p int NOT NULL, a int NOT NULL, u int, v int, t text) PARTITION BY RANGE (a)",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE r_0 ADD PRIMARY KEY (a)",
        "ALTER TABLE r_1 ADD PRIMARY KEY (a)",
        "INSERT INTO r SELECT 0, g, g, 0, 'x' FROM generate_series(6, 13) g",
        VIA_ROOT,
    )
    followed.equals()
    followed.equals("INSERT INTO r VALUES (0, 1, 1, 1, 'x')")
    advice = followed.refused(
        "has no key.*replica identity \\(a\\)", "UPDATE r SET a = 2 WHERE a = 1"
    )
    assert "key_columns={'public.r': [...]}" in advice
    followed.options["key_columns"] = {"public.r": ["a"]}
    followed.equals("DELETE FROM r WHERE a = 12", "UPDATE r SET a = 14 WHERE a = 8")
    with pytest.raises(
        ConfigurationError, match=r"\(u\) is not within .*\(a\) of the partitions public.r_0"
    ):
        source.stage(key_columns={"public.r": ["u"]})


@pytest.mark.parametrize("seed", range(6))
def test_random_partitions_are_right_or_refused(source: Source, seed: int) -> None:
    source.execute("DROP PUBLICATION p")
    run(source, seed)
