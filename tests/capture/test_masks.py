"""Masks: no byte that a run leaves holds a plain value, whichever way the value comes.

The whole way to the lake is in ``tests/conformance/test_masked_columns.py``, the words of the argument in
``tests/test_masks.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from airflow_provider_pgoutput.batch.changes import old, unchanged
from airflow_provider_pgoutput.capture.server import PostgresSource
from airflow_provider_pgoutput.capture.stream import spill
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.capture.pipeline_support import checkpoint_of, checkpoint_with_shapes
from tests.every_byte import holders_of

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

SECRET = b"a secret of these tests, long enough"
#: Every value that a mask has to hide contains this.
CANARY = "canary"
#: The same for a number and a date.
NUMBER, DAY = "918273645", "1873-11-29"
MASKS = {
    "public.people.email": "hash",
    "public.people.phone": "truncate(2)",
    "public.people.name": "redact",
    "public.people.note": "null",
    "public.people.nick": "drop",
    "public.people.born": "hash",
    "public.people.code": "hash",
    "public.people.tags": "hash",
    "public.people.body": "hash",
    "public.people.added": "hash",
    "public.whole.email": "hash",
    "public.whole.nick": "hash",
}


def hashed(text: str) -> str:
    return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()


def make_tables(source: Source) -> None:
    source.execute(
        "CREATE TABLE people(email text PRIMARY KEY, phone text, name text, note text, nick text,"
        " born date, code int, tags text[], body text, added text, plain date)",
        "ALTER TABLE people ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE whole(id int, email text, nick text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE people, whole",
    )


def row(number: int, plain: str = "2026-01-02") -> str:
    return (
        f"('{CANARY}-{number}@x.org', '+4{CANARY}', '{CANARY} name', '{CANARY} note', '{CANARY} nick',"
        f" '{DAY}', {NUMBER}, '{{{CANARY},b}}', repeat('{CANARY} body', 2000), '{CANARY} added', '{plain}')"
    )


def change(source: Source) -> None:
    """Insert, update with unchanged TOAST, key change, delete, a value that is rejected, FULL."""
    source.execute(
        f"INSERT INTO people VALUES {row(3)}",
        f"UPDATE people SET phone = '+5{CANARY}' WHERE email = '{CANARY}-3@x.org'",
        f"UPDATE people SET email = '{CANARY}-4@x.org' WHERE email = '{CANARY}-3@x.org'",
        f"UPDATE people SET plain = 'infinity' WHERE email = '{CANARY}-4@x.org'",
        f"DELETE FROM people WHERE email = '{CANARY}-1@x.org'",
        f"INSERT INTO whole VALUES (2, '{CANARY} two', NULL)",
        f"UPDATE whole SET email = '{CANARY} three' WHERE id = 2",
        "DELETE FROM whole WHERE id = 1",
    )


def plain_places(folder: Path) -> list[str]:
    """Files that hold a value which a mask has to hide, or the secret."""
    numbers = [struct.pack(each, int(NUMBER)) for each in ("<i", ">i")]
    return holders_of(folder, CANARY, NUMBER, DAY, "datetime.date(1873, 11, 29)", SECRET, *numbers)


def columns_of(manifest: Manifest) -> list[str]:
    """Names of the columns of ``people`` as they were first."""
    (table,) = [each for each in manifest.tables if each.table_name == "people"]
    return [each.name for each in table.versions[0].columns]


def masked_request(**options: Any) -> dict[str, Any]:
    return {"columns": MASKS, "mask_secret": SECRET, **options}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_no_plain_value_leaves_the_worker(
    source: Source, transport: str, binary: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    make_tables(source)
    source.execute(
        f"INSERT INTO people VALUES {row(1)}, {row(2, 'infinity')}",
        f"INSERT INTO whole VALUES (1, '{CANARY} one', '{CANARY} nick')",
    )
    request = masked_request(transport=transport, options=StreamOptions(binary=binary))
    first = source.stage(**request)
    copied = source.copied(first, "public.people")
    change(source)
    # With a default, older rows show a value that never was in a row event.
    source.execute(
        f"ALTER TABLE people ADD later text DEFAULT '{CANARY} default'",
        f"UPDATE people SET phone = '+6{CANARY}' WHERE email = '{CANARY}-2@x.org'",
    )
    masks = {**MASKS, "public.people.later": "hash"}
    request = {**request, "columns": masks, "checkpoint": checkpoint_with_shapes(first)}
    second = source.stage(**request)
    changes = source.changes(second, "public.people")

    assert plain_places(source.staging) == []
    assert CANARY not in caplog.text
    assert NUMBER not in caplog.text
    one, _ = sorted(copied, key=lambda each: each["email"] != hashed(f"{CANARY}-1@x.org"))
    assert (one["phone"], one["name"]) == ("+4", "***")
    assert one["note"] is None
    assert "nick" not in one
    assert one["born"] == hashed(DAY)
    assert one["code"] == hashed(NUMBER)
    assert one["tags"] == hashed(f"{{{CANARY},b}}")
    assert one["body"] == hashed(f"{CANARY} body" * 2000)
    inserted = changes[0]
    for name in ("phone", "name", "note", "born", "code", "tags", "body"):
        assert inserted[name] == one[name], name
    by_op = [(each["op"], each["email"]) for each in changes]
    keys = [hashed(f"{CANARY}-{number}@x.org") for number in (3, 3, 4, 4)]
    assert by_op[:4] == list(zip("IUUU", keys, strict=True))
    # An unchanged value stays unchanged: nothing is hashed for it.
    (body,) = [place for place, each in enumerate(columns_of(second)) if each == "body"]
    assert changes[1][unchanged(body)]
    assert changes[1]["body"] is None
    assert changes[2][old(0)] == keys[0]
    assert (changes[4]["op"], changes[4][old(0)]) == ("D", hashed(f"{CANARY}-1@x.org"))
    whole = source.changes(second, "public.whole")
    assert whole[0]["nick"] is None
    assert whole[1][old(1)] == hashed(f"{CANARY} two")
    (version, later) = next(each for each in second.tables if each.table_name == "people").versions
    assert version.dropped[0][1] == "nick"
    (column,) = [each for each in later.columns if each.name == "later"]
    assert column.missing_value == hashed(f"{CANARY} default")
    rejected = parquet.read_table(source.staging / second.rejected_files[0].path).to_pylist()
    wanted = {f'{{"email": "{key}"}}' for key in (keys[3], hashed(f"{CANARY}-2@x.org"))}
    assert {each["key"] for each in rejected} == wanted


def test_the_search_finds_plain_values(source: Source) -> None:
    make_tables(source)
    source.execute(f"INSERT INTO people VALUES {row(1)}")
    source.stage()
    assert plain_places(source.staging)


def staged(source: Source, **options: Any) -> tuple[Manifest, dict[str, Any]]:
    """A first batch of one table with a masked column, and the request of the next run."""
    source.execute(
        "CREATE TABLE users(id int PRIMARY KEY, email text, other text)",
        f"INSERT INTO users VALUES (1, '{CANARY} one', 'x')",
        "ALTER PUBLICATION p ADD TABLE users",
    )
    request = {"columns": {"public.users.email": "hash"}, "mask_secret": SECRET, **options}
    first = source.stage(**request)
    return first, {**request, "checkpoint": checkpoint_with_shapes(first)}


def test_a_new_secret_needs_a_copy(source: Source) -> None:
    _, request = staged(source)
    request["mask_secret"] = b"another secret, just as long as that"
    source.execute(f"UPDATE users SET email = '{CANARY} two'")
    with pytest.raises(ConfigurationError, match="secret of the hash is another") as refused:
        source.stage(**request)
    assert "copy_tables=['public.users']" in str(refused.value)
    copied = source.stage(**request, copy_tables=("public.users",))
    (found,) = source.copied(copied, "public.users")
    assert found["email"] != hashed(f"{CANARY} two")
    assert source.stage(**{**request, "checkpoint": checkpoint_with_shapes(copied)}).changes == 0


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"public.users.email": "redact"},
        {"public.users.email": "hash", "public.users.other": "drop"},
    ],
    ids=["removed", "another", "added"],
)
def test_another_mask_needs_a_copy(source: Source, columns: dict[str, str]) -> None:
    _, request = staged(source)
    source.execute(f"UPDATE users SET email = '{CANARY} two'")
    request["columns"] = columns
    with pytest.raises(ConfigurationError, match="in the lake, and columns wants it"):
        source.stage(**request)
    copied = source.stage(**request, copy_tables=("public.users",))
    assert len(source.copied(copied, "public.users")) == 1
    source.stage(**{**request, "checkpoint": checkpoint_with_shapes(copied)})


def test_a_key_whose_text_changes_in_all_rows_is_refused(source: Source) -> None:
    """As numbers the values are the same. Their hashes are others, so no row would be found by them."""
    source.execute(
        "CREATE TABLE prices(price real PRIMARY KEY, n int)",
        "INSERT INTO prices VALUES (0.1, 1)",
        "ALTER PUBLICATION p ADD TABLE prices",
    )
    request = {"columns": {"public.prices.price": "hash"}, "mask_secret": SECRET}
    first = source.stage(**request)
    (copied,) = source.copied(first, "public.prices")
    assert copied["price"] == hashed("0.1")
    source.execute(
        "ALTER TABLE prices ALTER price TYPE double precision",
        "UPDATE prices SET n = 2",
    )
    with pytest.raises(TableRefused, match="of the key changed its type"):
        source.stage(**request, checkpoint=checkpoint_with_shapes(first))


def test_a_renamed_column_stays_masked(source: Source) -> None:
    _, request = staged(source)
    source.execute(
        f"UPDATE users SET email = '{CANARY} two'",
        "ALTER TABLE users RENAME email TO mail",
        f"UPDATE users SET mail = '{CANARY} three'",
    )
    with pytest.raises(ConfigurationError, match="names no published column"):
        source.stage(**request)
    with pytest.raises(ConfigurationError, match="was called email and is masked"):
        source.stage(**{**request, "columns": {}})
    request["columns"] = {"public.users.mail": "hash"}
    second = source.stage(**request)
    # Changes from before the rename have the old name, and are masked by the new one.
    assert [
        each.get("mail", each.get("email")) for each in source.changes(second, "public.users")
    ] == [
        hashed(f"{CANARY} two"),
        hashed(f"{CANARY} three"),
    ]
    assert plain_places(source.staging) == []


def test_a_column_that_was_dropped_stays_masked(source: Source) -> None:
    _, request = staged(source)
    source.execute(
        f"UPDATE users SET email = '{CANARY} two'",
        "ALTER TABLE users DROP email",
        "UPDATE users SET other = 'y'",
    )
    with pytest.raises(ConfigurationError, match="take it out of columns"):
        source.stage(**request)
    request["columns"] = {"public.users.other": "hash"}
    with pytest.raises(ConfigurationError, match="is plain in the lake"):
        source.stage(**request)
    second = source.stage(**{**request, "columns": {}})
    assert source.changes(second, "public.users")[0]["email"] == hashed(f"{CANARY} two")
    assert plain_places(source.staging) == []


def test_a_name_in_between_is_refused(source: Source) -> None:
    """Nothing tells that ``between`` was the masked column: the catalog has no such column any more."""
    _, request = staged(source)
    source.execute(
        "ALTER TABLE users RENAME email TO between",
        f"UPDATE users SET between = '{CANARY} two'",
        "ALTER TABLE users RENAME between TO mail",
    )
    request["columns"] = {"public.users.mail": "hash"}
    with pytest.raises(TableRefused, match="neither the catalog nor the lake knows"):
        source.stage(**request)
    source.stage(**request, copy_tables=("public.users",))
    assert plain_places(source.staging) == []


def test_names_that_were_swapped_are_refused(source: Source) -> None:
    _, request = staged(source)
    source.execute(
        "BEGIN; ALTER TABLE users RENAME email TO t; ALTER TABLE users RENAME other TO email;"
        " ALTER TABLE users RENAME t TO other; COMMIT",
        f"UPDATE users SET other = '{CANARY} two'",
    )
    with pytest.raises(ConfigurationError, match="was called email and is masked"):
        source.stage(**request)
    assert plain_places(source.staging) == []


def test_a_renamed_table_stays_masked(source: Source) -> None:
    _, request = staged(source)
    source.execute(
        f"UPDATE users SET email = '{CANARY} two'",
        "ALTER TABLE users RENAME TO persons",
        f"UPDATE users_or_persons SET email = '{CANARY} three'".replace(
            "users_or_persons", "persons"
        ),
    )
    request["columns"] = {"public.persons.email": "hash"}
    second = source.stage(**request)
    (table,) = second.tables
    assert {each.columns[1].mask for each in table.versions} != {None}
    assert plain_places(source.staging) == []


def test_a_renamed_table_is_not_copied_without_its_mask(source: Source) -> None:
    """Its earlier name is not that of a table which is gone. A warning would not end the run."""
    _, request = staged(source)
    source.execute("ALTER TABLE users RENAME TO persons")
    with pytest.raises(ConfigurationError, match=r"no published column: public\.users\.email"):
        source.stage(**request, copy_tables=("public.persons",))
    with pytest.raises(ConfigurationError, match="wants it plain") as refused:
        source.stage(**{**request, "columns": {}})
    assert "'public.persons.email': 'hash'" in str(refused.value), "a copy would be plain"
    assert plain_places(source.staging) == []
    source.execute("ALTER PUBLICATION p DROP TABLE persons")
    # Now it is gone, so its mask is only warned of.
    source.stage(**request)


def test_names_that_were_swapped_and_swapped_back_are_refused(source: Source) -> None:
    """Both names are known, and one is not masked. Only the order of the columns shows whose they were."""
    _, request = staged(source)
    swap = (
        "BEGIN; ALTER TABLE users RENAME email TO t; ALTER TABLE users RENAME other TO email;"
        " ALTER TABLE users RENAME t TO other; COMMIT"
    )
    source.execute(swap, f"UPDATE users SET other = '{CANARY} two'", swap)
    with pytest.raises(TableRefused, match="names in another order"):
        source.stage(**request)
    source.stage(**request, copy_tables=("public.users",))
    assert plain_places(source.staging) == []


def test_a_name_that_was_taken_over_is_refused(source: Source) -> None:
    _, request = staged(source)
    source.execute(
        "ALTER TABLE users RENAME other TO old",
        "ALTER TABLE users RENAME email TO other",
        f"UPDATE users SET other = '{CANARY} two'",
        "ALTER TABLE users DROP other",
    )
    with pytest.raises(TableRefused, match="names in another order"):
        source.stage(**{**request, "columns": {}})
    assert plain_places(source.staging) == []


def test_a_name_that_was_taken_over_is_masked_by_its_number(source: Source) -> None:
    """Else ``other`` is hashed also where it was plain, and apply refuses that batch again and again."""
    _, request = staged(source)
    source.execute(
        f"UPDATE users SET email = '{CANARY} two', other = 'y'",
        "ALTER TABLE users RENAME other TO old",
        "ALTER TABLE users RENAME email TO other",
        f"UPDATE users SET other = '{CANARY} three'",
    )
    second = source.stage(**{**request, "columns": {"public.users.other": "hash"}})
    (table,) = second.tables
    assert [
        [each.name for each in version.columns if each.mask is not None]
        for version in table.versions
    ] == [["email"], ["other"]]
    assert [each["other"] for each in source.changes(second, "public.users")] == [
        "y",
        hashed(f"{CANARY} three"),
    ]
    assert plain_places(source.staging) == []


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("change", ["RENAME ssn TO tax", "DROP ssn"])
def test_a_sealed_batch_is_found_when_its_column_has_another_name(
    source: Source, is_first: bool, change: str
) -> None:
    """The new name is the only one that can be given."""
    column = "ALTER TABLE users ADD ssn text"
    insert = f"INSERT INTO users VALUES (2, '{CANARY}', 'x', '{CANARY}')"
    masks = {"public.users.email": "hash", "public.users.ssn": "hash"}
    if is_first:
        source.execute(
            "CREATE TABLE users(id int PRIMARY KEY, email text, other text)",
            "ALTER PUBLICATION p ADD TABLE users",
            column,
            insert,
        )
        request: dict[str, Any] = {"mask_secret": SECRET}
    else:
        _, request = staged(source)
        source.execute(column, insert)
    sealed = source.stage(**{**request, "columns": masks})
    source.execute(f"ALTER TABLE users {change}")
    del masks["public.users.ssn"]
    if "RENAME" in change:
        masks["public.users.tax"] = "hash"
    assert source.stage(**{**request, "columns": masks}).batch_id == sealed.batch_id
    masks["public.users.email"] = "redact"
    with pytest.raises(ConfigurationError, match=r"in the lake, and|An earlier run sealed"):
        source.stage(**{**request, "columns": masks})


def test_a_sealed_batch_with_another_secret_is_refused(source: Source) -> None:
    _, request = staged(source)
    request |= {"checkpoint": None, "mask_secret": b"another secret, just as long as that"}
    with pytest.raises(ConfigurationError, match="its hashes have another secret"):
        source.stage(**request)


def test_a_batch_that_was_sealed_without_the_mask_is_refused(source: Source) -> None:
    source.execute(
        "CREATE TABLE users(id int PRIMARY KEY, email text)",
        f"INSERT INTO users VALUES (1, '{CANARY} one')",
        "ALTER PUBLICATION p ADD TABLE users",
    )
    source.stage()
    with pytest.raises(ConfigurationError, match="An earlier run sealed the next batch") as refused:
        source.stage(columns={"public.users.email": "hash"}, mask_secret=SECRET)
    assert "is plain" in str(refused.value)


@pytest.mark.parametrize("mask", ["redact", "truncate(1)", "null", "drop"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_may_only_be_hashed(source: Source, mask: str, identity: str) -> None:
    source.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    column = "a" if identity == "DEFAULT" else "b"
    with pytest.raises(ConfigurationError, match="does not go with a column of the key") as refused:
        source.stage(columns={f"public.t.{column}": mask})
    assert f"column {column}" in str(refused.value)


def test_an_identity_that_comes_later_is_refused(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'x')")
    request = {"columns": {"public.t.b": "redact"}}
    first = source.stage(**request)
    source.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"UPDATE t SET b = '{CANARY}'",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
    )
    with pytest.raises(ConfigurationError, match="does not go with a column of the key"):
        source.stage(**request, checkpoint=checkpoint_with_shapes(first))
    assert plain_places(source.staging) == []


@pytest.mark.parametrize("name", ["public.t.c", "public.u.b", "t.b"])
def test_a_mask_of_no_column_is_refused(source: Source, name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"names no published column|not the name of a column"
    ):
        source.stage(columns={name: "redact"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"options": StreamOptions(two_phase=True)}, "two_phase"),
        ({"options": StreamOptions(streaming="on")}, "streaming"),
        ({"initial_copy": "never"}, "initial_copy"),
        ({"column_types": {"public.t.b": "string"}}, "column_types"),
        ({"mask_secret": None}, "there is no secret"),
        ({"mask_secret": b"short"}, "could be guessed"),
    ],
)
def test_what_cannot_be_masked_is_refused(
    source: Source, options: dict[str, Any], words: str
) -> None:
    given = {"columns": {"public.t.b": "hash"}, "mask_secret": SECRET, **options}
    with pytest.raises(ConfigurationError, match=words):
        source.request(**given)


def test_no_unfinished_transaction_waits_on_the_disk(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server streams what exceeds its memory. What waits for its commit would be put aside as it came."""
    database = source.execute("SELECT current_database()")[0][0]
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    written: list[int] = []
    put_aside = spill.FileSpool.append

    def noted(spool: spill.FileSpool, fragment: Any) -> None:
        written.append(len(fragment.data))
        put_aside(spool, fragment)

    monkeypatch.setattr(spill.FileSpool, "append", noted)
    rows = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"
    source.execute("INSERT INTO t VALUES (0, 'x')")
    request: dict[str, Any] = {"columns": {"public.t.b": "hash"}, "mask_secret": SECRET}
    first = source.stage(**request)
    source.execute(rows.format(1, 5000))
    second = source.stage(**request, checkpoint=checkpoint_with_shapes(first))
    assert second.changes == 5000
    assert not written
    source.execute(rows.format(5001, 10000))
    source.stage(checkpoint=checkpoint_of(second))
    assert written, "without masks it is streamed"


def test_masks_that_the_lake_still_has_do_not_go_with_two_phase(source: Source) -> None:
    _, request = staged(source)
    request |= {"columns": {}, "options": StreamOptions(two_phase=True)}
    with pytest.raises(ConfigurationError, match="two_phase does not go with masks"):
        source.stage(**request)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("ALTER TABLE users ADD later text", None),
        ("ALTER TABLE users RENAME email TO mail", "names no published column"),
        (
            (
                "ALTER TABLE users RENAME email TO x; ALTER TABLE users RENAME other TO email;"
                " ALTER TABLE users RENAME x TO other"
            ),
            "renamed while the run read its table",
        ),
    ],
    ids=["added", "renamed", "swapped"],
)
def test_a_change_after_the_catalog_was_read(
    source: Source, monkeypatch: pytest.MonkeyPatch, change: str, refusal: str | None
) -> None:
    """With ``messages`` the batch may end later than the catalog was read first."""
    _, request = staged(source)
    read_facts = PostgresSource.read_facts

    def facts_and_a_change(of: PostgresSource) -> Any:
        facts = read_facts(of)
        source.execute(change, f"INSERT INTO users VALUES (2, '{CANARY}', '{CANARY}')")
        return facts

    monkeypatch.setattr(PostgresSource, "read_facts", facts_and_a_change)
    request["columns"] = {"public.users.email": "hash"}
    request["options"] = StreamOptions(messages=True)
    if refusal is not None:
        with pytest.raises(ConfigurationError, match=refusal):
            source.stage(**request)
        assert plain_places(source.staging) == []
    else:
        assert source.stage(**request).changes == 1


def test_the_secret_is_not_shown(source: Source) -> None:
    request = source.request(columns={"public.t.b": "hash"}, mask_secret=SECRET)
    assert SECRET.decode() not in repr(request)
