"""Text and binary give the same batches: one workload, two formats, every type with a binary form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyarrow import parquet

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

#: Two values of each type; the second goes through every special case that the type has.
VALUES = {
    "int2": ("1", "-32768"),
    "int4": ("2", "2147483647"),
    "int8": ("3", "-9223372036854775808"),
    "oid": ("4", "4294967295"),
    "float4": ("1.5", "'-Infinity'"),
    "float8": ("2.5", "'NaN'"),
    "bool": ("true", "false"),
    "text": ("'te\nxt'", "''"),
    "varchar(10)": ("'é日'", "' '"),
    "char(5)": ("'ab'", "''"),
    "json": ("""'{"a": 1}'""", "'null'"),
    "jsonb": ("""'{"b": [1, 2]}'""", "'null'"),
    "bytea": (r"'\x00ff'", "''"),
    "numeric(12,2)": ("-12345.67", "'NaN'"),
    "numeric(38,10)": ("1234567890.0123456789", "0"),
    "numeric": ("1e130", "'-Infinity'"),
    "date": ("'2026-02-28'", "'-infinity'"),
    "time": ("'23:59:59.999999'", "'24:00'"),
    "timestamp": ("'2026-02-28 12:00:00.5'", "'0044-03-15 BC'"),
    "timestamptz": ("'2026-02-28 12:00:00.5+02'", "'infinity'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"),
    "mood": ("'happy'", "'sad'"),
    "amount": ("1.50", "2"),
    "int4[]": ("'{1,NULL,3}'", "'{{1,2},{3,4}}'"),
    "text[]": ("""'{a,"b,c",NULL}'""", "'[0:1]={x,y}'"),
    "numeric(12,2)[]": ("'{1.5,2}'", "'{}'"),
    "numeric[]": ("'{1.5,NULL}'", "'{1.5,1e40}'"),
    "time[]": ("'{12:00:00.5,NULL}'", "'{24:00}'"),
}


def workload(source: Source) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(VALUES))
    first = ", ".join(value for value, _ in VALUES.values())
    second = ", ".join(value for _, value in VALUES.values())
    nulls = ", ".join("NULL" for _ in VALUES)
    changed = ", ".join(f"c{n} = {value}" for n, (_, value) in enumerate(VALUES.values()))
    source.execute(
        "CREATE TYPE mood AS ENUM ('happy', 'sad')",
        "CREATE DOMAIN amount AS numeric(10,2)",
        f"CREATE TABLE typed(k uuid DEFAULT gen_random_uuid(), d date, {columns}, PRIMARY KEY (k, d))",
        f"CREATE TABLE whole({columns})",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE typed, whole",
    )
    source.make_slot()
    key = "gen_random_uuid(), '2026-01-01'"
    source.execute(
        f"INSERT INTO typed VALUES ({key}, {first}), ({key}, {second}), ({key}, {nulls})",
        f"INSERT INTO whole VALUES ({first}), ({second}), ({nulls})",
        "UPDATE typed SET d = '2027-01-01' WHERE c0 = 1",
        f"UPDATE typed SET {changed} WHERE c0 = 1",
        f"UPDATE whole SET {changed} WHERE c0 = 1",
        "UPDATE typed SET c0 = 7, c7 = repeat('large', 5000)",
        "UPDATE typed SET c0 = 8",
        "DELETE FROM typed WHERE c1 IS NULL",
        "DELETE FROM whole",
    )


def content(source: Source, manifest: Manifest) -> tuple[Any, ...]:
    tables = {each.name: each.counts for each in manifest.tables}
    rows = {name: repr(source.changes(manifest, name)) for name in tables}
    rejected = [
        repr(parquet.read_table(source.staging / each.path).to_pylist())
        for each in manifest.rejected_files
    ]
    return tables, rows, rejected


#: All that there is a choice for in this mode.
CHOICES = {
    "type_options": {"numeric": "decimal(20,4)", "uuid": "uuid", "time": "micros"},
    "column_types": {"public.typed.c13": "decimal(6,1)"},
}


@pytest.mark.parametrize(
    ("transport", "choices"), [("sql", {}), ("walsender", {}), ("sql", CHOICES)]
)
def test_text_and_binary_stage_the_same(
    source: Source, transport: str, choices: dict[str, Any]
) -> None:
    workload(source)
    staged = []
    for binary in (False, True):
        slot = f"{source.slot_name}_{transport}_{binary}".lower()
        source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
        manifest = source.stage(
            slot_name=slot,
            initial_copy="never",
            transport=transport,
            options=StreamOptions(binary=binary),
            **choices,
        )
        staged.append(content(source, manifest))
        source.drop_slot(slot)
    tables, _, rejected = staged[0]
    assert {name: counts.changes for name, counts in tables.items()} == {
        "public.typed": 12,
        "public.whole": 7,
    }
    # Dates and numbers that no column of the lake holds, with the text and the key that they have.
    assert "-infinity" in rejected[0]
    assert "0044-03-15 00:00:00 BC" in rejected[0]
    assert staged[0] == staged[1]


def test_a_copy_and_its_changes_are_one_table(source: Source) -> None:
    """Copied rows come as text or by COPY's own rules, changes in binary form."""
    source.execute("INSERT INTO t VALUES (1, 'copied')")
    first = source.stage(options=StreamOptions(binary=True))
    assert [row["b"] for row in source.copied(first, "public.t")] == ["copied"]


def staged_in(source: Source, *, binary: bool, **options: Any) -> tuple[Any, ...]:
    """What a copy of the slot gives, in one of the forms."""
    slot = f"{source.slot_name}_{binary}".lower()
    source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
    manifest = source.stage(
        slot_name=slot, initial_copy="never", options=StreamOptions(binary=binary), **options
    )
    source.drop_slot(slot)
    return content(source, manifest)


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_types_without_a_binary_form_are_named_and_all_is_read_as_text(
    source: Source, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    source.execute(
        "CREATE TABLE odd(a int PRIMARY KEY, b tsvector, c regclass, d text)",
        "ALTER PUBLICATION p ADD TABLE odd",
    )
    source.make_slot()
    source.execute("INSERT INTO odd VALUES (1, 'a:1', 'pg_class', 'x')", "UPDATE odd SET d = 'y'")
    found = staged_in(source, binary=True, transport=transport)
    for named in ("2 published column(s)", "public.odd.b (tsvector)", "public.odd.c (regclass)"):
        assert named in caplog.text
    assert caplog.text.count("The slot is read as text.") == 1
    assert found == staged_in(source, binary=False, transport=transport)
    assert found[0]["public.odd"].changes == 2


#: A type that we do not read in binary form, and one that the server does not even send in it.
PASSING = {"tsvector": "'a:1'", "aclitem[]": "ARRAY[makeaclitem(10, 10, 'SELECT', false)]"}


@pytest.mark.parametrize("transport", ["sql", "walsender"])
@pytest.mark.parametrize("kind", PASSING)
def test_a_type_that_is_only_in_the_backlog_lets_all_be_read_as_text(
    source: Source, caplog: pytest.LogCaptureFixture, kind: str, transport: str
) -> None:
    source.make_slot()
    source.execute(
        "INSERT INTO t VALUES (1, 'before')",
        f"ALTER TABLE t ADD c {kind}",
        f"INSERT INTO t VALUES (2, 'with it', {PASSING[kind]})",
        "ALTER TABLE t DROP c",
        "INSERT INTO t VALUES (3, 'after')",
    )
    found = staged_in(source, binary=True, transport=transport)
    assert caplog.text.count("The slot is read as text.") == 1
    assert found == staged_in(source, binary=False, transport=transport)
    assert found[0]["public.t"].inserts == 3


def test_a_type_without_a_send_function_comes_as_text_beside_binary_values(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute(
        "CREATE TABLE shy(a int, b aclitem, c date, PRIMARY KEY (a))",
        "ALTER TABLE shy REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE shy",
    )
    source.make_slot()
    source.execute(
        "INSERT INTO shy VALUES (1, makeaclitem(10, 10, 'SELECT', false), '2026-01-01')",
        "INSERT INTO shy VALUES (2, NULL, 'infinity')",
        "UPDATE shy SET c = '2026-01-02'",
    )
    found = staged_in(source, binary=True)
    assert "The slot is read as text." not in caplog.text
    assert found == staged_in(source, binary=False)
    assert "=r/" in found[1]["public.shy"]


def move_slot(source: Source, applied: Manifest) -> None:
    """Past a batch: of what was prepared in it the server sends no more than its end."""
    source.execute(f"SELECT pg_replication_slot_advance('{source.slot_name}', '{applied.end_lsn}')")


@pytest.mark.parametrize("first_in_binary", [True, False])
def test_what_was_prepared_in_one_form_is_committed_in_the_other(
    source: Source, first_in_binary: bool
) -> None:
    """Its rows wait as they came, and the batch that they are committed in may be read otherwise."""
    options = StreamOptions(binary=True, two_phase=True)
    source.execute(
        "CREATE TABLE p1(a int PRIMARY KEY, b date, c numeric)",
        "CREATE TABLE p2(a int PRIMARY KEY, b text)",
        "ALTER PUBLICATION p ADD TABLE p1, p2",
    )
    odd = ("ALTER TABLE p2 ADD w tsvector", "ALTER TABLE p2 DROP w")
    if not first_in_binary:
        source.execute(odd[0])
    last = source.stage(options=options)
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO p1 VALUES (1, '2026-02-28', 1.50), (2, 'infinity', 'NaN')")
        session.execute("PREPARE TRANSACTION 'waits'")
    source.execute("INSERT INTO p2 (a, b) VALUES (1, 'x')")
    last = source.stage(options=options, checkpoint=checkpoint_of(last))
    assert len(last.prepared) == 1
    move_slot(source, last)
    source.execute(odd[0] if first_in_binary else odd[1])
    source.execute(
        "INSERT INTO p1 VALUES (3, '2026-03-01', 2.5)",
        "COMMIT PREPARED 'waits'",
        "UPDATE p1 SET b = '2026-03-02' WHERE a = 1",
    )
    found = source.stage(options=options, checkpoint=checkpoint_of(last))
    rows = [(row["a"], str(row["b"]), row["c"]) for row in source.changes(found, "public.p1")]
    assert rows == [
        (3, "2026-03-01", "2.5"),
        (1, "2026-02-28", "1.50"),
        (2, "None", "NaN"),
        (1, "2026-03-02", "1.50"),
    ]
    (rejected,) = found.rejected_files
    kept = parquet.read_table(source.staging / rejected.path).to_pylist()
    assert [(row["raw_value"], row["key"]) for row in kept] == [("infinity", '{"a": "2"}')]


@pytest.mark.parametrize(
    ("type_sql", "value", "change"),
    [
        ("ENUM ('sad')", "sad", ("ALTER TABLE p1 DROP b", "DROP TYPE mood")),
        ("(x int)", "(7)", ("ALTER TYPE mood ADD ATTRIBUTE w tsvector",)),
    ],
    ids=["dropped", "altered"],
)
def test_prepared_values_of_a_type_that_is_gone_by_their_commit_are_read(
    source: Source, type_sql: str, value: str, change: tuple[str, ...]
) -> None:
    """The server sends them once; in binary form nothing would say any more what they are."""
    options = StreamOptions(binary=True, two_phase=True)
    source.execute(
        f"CREATE TYPE mood AS {type_sql}",
        "CREATE TABLE p1(a int PRIMARY KEY, b mood)",
        "ALTER PUBLICATION p ADD TABLE p1",
    )
    last = source.stage(options=options)
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("BEGIN")
        session.execute(f"INSERT INTO p1 VALUES (1, '{value}')")
        session.execute("PREPARE TRANSACTION 'waits'")
    source.execute("INSERT INTO t VALUES (1, 'x')")
    last = source.stage(options=options, checkpoint=checkpoint_of(last))
    assert len(last.prepared) == 1
    move_slot(source, last)
    source.execute("COMMIT PREPARED 'waits'", *change)
    found = source.stage(options=options, checkpoint=checkpoint_of(last))
    assert [(row["a"], row["b"]) for row in source.changes(found, "public.p1")] == [(1, value)]


def test_what_is_chosen_to_be_text_is_printed_as_the_server_does(source: Source) -> None:
    workload(source)
    chosen = {f"public.typed.c{place}": "string" for place in range(len(VALUES))}
    found = staged_in(source, binary=True, column_types=chosen)
    assert found == staged_in(source, binary=False, column_types=chosen)
