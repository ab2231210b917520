"""Types that are gone at the source when a batch is read which has rows that were written under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pipeline_support import checkpoint_of, checkpoint_with_shapes

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: How each type is made, and a value of it.
TYPES = {
    "mood": ("TYPE {} AS ENUM ('sad', 'ok')", "sad"),
    # A user may call a type as the server calls arrays.
    "_x": ("TYPE {} AS ENUM ('in', 'out')", "in"),
    "liked": ("DOMAIN {} AS text", "b"),
    "small": ("DOMAIN {} AS int", "7"),
    "price": ("DOMAIN {} AS numeric(8,2)", "1.50"),
    "pair": ("TYPE {} AS (a int, b text)", "(1,x)"),
    "span": ("TYPE {} AS RANGE (subtype = int)", "[1,5)"),
    "many": ("DOMAIN {} AS int[]", "{{1,2}}"),
}
LISTS = {f"{name}_list": f"{name}[]" for name in TYPES if name != "many"}
COLUMNS = {**{f"{name}_one": name for name in TYPES}, **LISTS}


def made(source: Source) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    source.execute(
        *(f"CREATE {how.format(name)}" for name, (how, _) in TYPES.items()),
        f"CREATE TABLE g(id int PRIMARY KEY, {columns})",
        "ALTER PUBLICATION p ADD TABLE g",
    )


def inserted(number: int) -> str:
    values = [value.format() for _, value in TYPES.values()]
    lists = ["{" + f'"{value}"' + "}" for (name, (_, value)) in TYPES.items() if name != "many"]
    texts = ", ".join(f"'{each}'" for each in [*values, *lists])
    return f"INSERT INTO g VALUES ({number}, {texts})"


def replaced() -> list[str]:
    """Statements that put another type of the same name in the place of each, and drop the former one."""
    statements, casts = [], []
    for name, (how, _) in TYPES.items():
        kind = how.split()[0]
        statements += [
            f"ALTER {kind} {name} RENAME TO old_{name}",
            f"CREATE {how.format(f'new_{name}')}",
        ]
    for column, wanted in COLUMNS.items():
        array = "[]" if wanted.endswith("[]") else ""
        casts.append(f"ALTER {column} TYPE new_{wanted} USING {column}::text{array}::new_{wanted}")
    statements.append(f"ALTER TABLE g {', '.join(casts)}")
    for name, (how, _) in TYPES.items():
        kind = how.split()[0]
        statements += [f"DROP {kind} old_{name}", f"ALTER {kind} new_{name} RENAME TO {name}"]
    return statements


@pytest.mark.parametrize("mode", ["text", "struct", "binary"])
def test_replaced_types_are_what_they_were(source: Source, mode: str) -> None:
    """The batch before has kept what they are."""
    made(source)
    asked: dict[str, Any] = {"options": StreamOptions(binary=mode == "binary")}
    if mode == "struct":
        asked["type_options"] = {"composite": "struct"}
    first = source.stage(**asked)
    source.execute(inserted(1), *replaced(), inserted(2))
    manifest = source.stage(checkpoint=checkpoint_with_shapes(first), **asked)
    (table,) = manifest.tables
    one, two = table.versions
    for before, after in zip(one.columns[1:], two.columns[1:], strict=True):
        assert before.type_oid != after.type_oid
        assert (before.type_name, before.lake_type) == (after.type_name, after.lake_type)
    (first_row, second_row) = source.changes(manifest, "public.g")
    assert all(first_row[each] == second_row[each] for each in COLUMNS)
    # They were converted, perhaps to other values.
    assert len(table.schema_changes) == len(COLUMNS)
    assert "column mood_list changed from public.mood[] to another type of that name" in map(
        str, table.schema_changes
    )


def test_of_a_type_that_no_batch_has_kept_the_stream_has_the_name(source: Source) -> None:
    """In a lake of the version before, and where a type came and went within one batch."""
    made(source)
    checkpoint = checkpoint_of(source.stage())
    source.execute(inserted(1), *replaced(), inserted(2))
    (table,) = source.stage(checkpoint=checkpoint).tables
    one, two = (
        {each.name: (each.type_name, each.lake_type) for each in version.columns}
        for version in table.versions
    )
    for name in ("mood_one", "_x_one", "pair_one", "span_one", *LISTS):
        assert one[name] == two[name], name
    # Of a domain it is that of the type under it, and does not say how long a number may be.
    found = {name: one[f"{name}_one"][1] for name in ("liked", "small", "many", "price")}
    assert found == {"liked": "string", "small": "int", "many": "list<int>", "price": "string"}


def test_a_type_that_is_gone_without_a_successor(source: Source) -> None:
    source.execute("ALTER TABLE t ADD e int, ADD l int[]", "INSERT INTO t VALUES (0)")
    checkpoint = checkpoint_with_shapes(source.stage())
    source.execute(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TYPE inner_pair AS (a int, b mood)",
        "ALTER TABLE t ALTER e TYPE mood USING 'sad', ALTER l TYPE inner_pair[] USING '{\"(1,sad)\"}'",
        "UPDATE t SET b = 'x'",
        "ALTER TABLE t ALTER e TYPE text, ALTER l TYPE text[] USING l::text[]",
        "DROP TYPE inner_pair",
        "DROP TYPE mood",
        "UPDATE t SET b = 'y'",
    )
    manifest = source.stage(checkpoint=checkpoint)
    kinds = [
        [(each.type_name, each.lake_type) for each in version.columns[2:]]
        for version in manifest.tables[0].versions
    ]
    assert kinds == [
        [("public.mood", "string"), ("public.inner_pair[]", "list<string>")],
        [("text", "string"), ("text[]", "list<string>")],
    ]
    rows = source.changes(manifest, "public.t")
    assert [(each["e"], each["l"]) for each in rows] == [("sad", ["(1,sad)"])] * 2


def test_a_name_that_looks_like_an_arrays_is_an_error_that_a_copy_passes(source: Source) -> None:
    """The type came and went within one batch, so that nothing but its name is known."""
    source.execute("ALTER TABLE t ADD e text", "INSERT INTO t VALUES (0)")
    checkpoint = checkpoint_with_shapes(source.stage())
    source.execute(
        "CREATE TYPE _x AS ENUM ('in')",
        "ALTER TABLE t ALTER e TYPE _x USING 'in'",
        "UPDATE t SET b = 'x'",
        "ALTER TABLE t ALTER e TYPE text",
        "DROP TYPE _x",
    )
    with pytest.raises(
        ProtocolError, match=r"not in the text form of type public\.x\[\]"
    ) as refused:
        source.stage(checkpoint=checkpoint)
    assert (refused.value.table, refused.value.column) == ("public.t", "e")
    assert "copy_tables" in str(refused.value)
    manifest = source.stage(checkpoint=checkpoint, copy_tables=("public.t",))
    assert source.copied(manifest, "public.t") == [{"a": 0, "b": "x", "e": "in"}]
