"""What the server stores is what staged files, Spark and pyiceberg give; scenarios C61 to C63."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo

from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from tests.capture.types.oracle import REJECTED
from tests.reader_role import reader_conninfo
from tests.types_end_to_end import german, keys
from tests.types_end_to_end.columns import EXTENSION_TYPES, has_xml, missing_extensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tests.types_end_to_end.conftest import Carried, Staged


def _expected(staged: Staged, place: int) -> list[Any]:
    """What the lake must hold of a column."""
    column = staged.columns[place]
    if column.stored is None:
        return [None if each is None else each.decode() for each in staged.texts[place]]
    return [None if each is None else column.stored(each) for each in staged.stored[place]]


def _differences(
    staged: Staged, found: list[list[Any]], rows: slice, places: Sequence[int] | None = None
) -> list[str]:
    """Values that are not the server's; of some columns, or of all."""
    wrong = []
    places = range(len(staged.columns)) if places is None else places
    for place, values in zip(places, found, strict=True):
        column = staged.columns[place]
        wanted = [None if each == REJECTED else each for each in _expected(staged, place)][rows]
        for number, (one, other) in enumerate(zip(values, wanted, strict=True)):
            if one != other or type(one) is not type(other):
                wrong.append(f"{column.label} in row {number}: {one!r} in place of {other!r}")
    return wrong


@pytest.mark.parametrize("way", ["copy", "sql", "walsender"])
def test_staged_files_hold_what_the_server_stores(staged: Staged, way: str) -> None:
    rows = slice(0, staged.copied) if way == "copy" else slice(staged.copied, None)
    assert not _differences(staged, staged.values[way], rows)


def test_binary_mode_stages_what_the_server_stores(staged: Staged) -> None:
    assert len(staged.binary) > 65
    rows = slice(staged.copied, None)
    assert not _differences(staged, staged.values["binary"], rows, staged.binary)


def test_every_column_has_values(staged: Staged) -> None:
    assert len(staged.columns) > 130
    for place, column in enumerate(staged.columns):
        assert any(each is not None for each in staged.texts[place]), column.label


@pytest.mark.parametrize("name", EXTENSION_TYPES)
def test_extensions_are_among_the_types(staged: Staged, name: str) -> None:
    """A server without one has fewer columns; that is said here."""
    with psycopg.connect(staged.conninfo) as session:
        version = session.info.server_version // 10_000
    if name in missing_extensions(version):
        pytest.skip(f"the tests' PostgreSQL {version} was packaged without {name}")
    assert any(each.sql_type.startswith(f"public.{name}") for each in staged.columns)


def test_xml_is_among_the_types(staged: Staged) -> None:
    with psycopg.connect(staged.conninfo, autocommit=True) as session:
        if not has_xml(session):
            pytest.skip("the tests' PostgreSQL was built without libxml: there is no value of xml")
    assert any(each.sql_type == "xml" for each in staged.columns)


def test_money_does_not_follow_the_locale(staged: Staged) -> None:
    """C63: where every other session of the role sees 1.234,56 €."""
    if staged.no_locale:
        pytest.skip(staged.no_locale)
    place = next(n for n, each in enumerate(staged.columns) if each.sql_type == "money")
    with psycopg.connect(reader_conninfo(staged.conninfo), client_encoding="utf8") as session:
        query = f'SELECT c{place}::text FROM public."values" ORDER BY id'
        shown = [value for (value,) in session.execute(query)]
    row = shown.index(german.SHOWN)
    copied, streamed = shown[: staged.copied], shown[staged.copied :]
    for way, theirs in (("copy", copied), ("sql", streamed), ("walsender", streamed)):
        ours = staged.values[way][place]
        assert ours[row] == "$1,234.56"
        assert [each is None for each in ours] == [each is None for each in theirs]
        pairs = zip(ours, theirs, strict=True)
        assert not [one for one, other in pairs if one is not None and one == other]


@pytest.mark.parametrize("locale", [german.LOCALE, german.YEN])
def test_money_without_two_decimals_is_warned_of(
    staged: Staged, caplog: pytest.LogCaptureFixture, locale: str
) -> None:
    if staged.no_locale:
        pytest.skip(staged.no_locale)
    with psycopg.connect(staged.conninfo, autocommit=True) as session:
        session.execute(
            "CREATE TABLE public.amounts (id int PRIMARY KEY, prices money[], note text)"
        )
        session.execute("CREATE PUBLICATION amounts FOR TABLE public.amounts")
        session.execute("INSERT INTO public.amounts VALUES (1, ARRAY[1234::money])")
        session.execute(f"ALTER DATABASE types_end_to_end SET lc_monetary = '{locale}'")
    request = CaptureRequest(
        conninfo=reader_conninfo(staged.conninfo),
        slot_name="amounts",
        publication_names=("amounts",),
        staging_uri=(staged.folder / f"amounts_{locale[:2]}").as_uri(),
    )
    stage_batch(request)
    with psycopg.connect(staged.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_drop_replication_slot('amounts')")
        session.execute("DROP TABLE public.amounts; DROP PUBLICATION amounts")
        session.execute(f"ALTER DATABASE types_end_to_end SET lc_monetary = '{german.LOCALE}'")
    warned = "public.amounts.prices are staged as with lc_monetary C"
    assert (warned in caplog.text) == (locale == german.YEN)
    assert ("has 1 smallest units to one" in caplog.text) == (locale == german.YEN)


@pytest.mark.parametrize("engine", ["spark", "pyiceberg"])
def test_the_lake_holds_what_the_server_stores(carried_in_each_mode: Carried, engine: str) -> None:
    carried = carried_in_each_mode
    found = carried.values[engine]
    if engine == "pyiceberg":
        found = _with_null_lists_of_structs(carried)
    assert not _differences(carried.staged, found, slice(None), carried.places)


def _with_null_lists_of_structs(carried: Carried) -> list[list[Any]]:
    """pyiceberg reads a NULL list of structs as an empty one: apache/iceberg-python#3833.

    Pinned here: exactly the NULLs are read so, which Spark shows to be in the files.
    """
    corrected = list(carried.values["pyiceberg"])
    for number, place in enumerate(carried.places):
        column = carried.staged.columns[place]
        if column.choice == "struct" and column.sql_type.endswith("[]"):
            by_spark = carried.values["spark"][number]
            assert corrected[number] == [[] if each is None else each for each in by_spark]
            corrected[number] = by_spark
    return corrected


def test_what_does_not_fit_is_kept_once_as_the_servers_text(
    carried_in_each_mode: Carried,
) -> None:
    carried, count = carried_in_each_mode, 0
    staged = carried.staged
    for place in carried.places:
        column, texts = staged.columns[place], staged.texts[place]
        wanted = {
            row + 1: (texts[row] or b"").decode()
            for row, value in enumerate(_expected(staged, place))
            if value == REJECTED
        }
        assert carried.rejected[place] == wanted, column.label
        count += len(wanted)
    assert count > 50
    counted = [table.counts.rejected for each in carried.batches for table in each.manifest.tables]
    assert sum(counted) == count


@pytest.mark.parametrize("name", keys.TABLES)
def test_rows_are_found_again_by_keys_and_images_of_every_kind(
    carried: Carried, spark: SparkSession, name: str
) -> None:
    """B34: NaN, -0.0, padded and trailing zeros, and what is a uuid or a struct by choice."""
    rows = spark.table(f"lake.{carried.pipeline.namespace}.{name}").collect()
    found = [_with_text_of_floats(row.asDict(recursive=True)) for row in rows]
    assert sorted(found, key=repr) == sorted(keys.EXPECTED[name], key=repr)


def _with_text_of_floats(value: Any) -> Any:
    """NaN equals nothing, and -0.0 equals 0.0."""
    if isinstance(value, dict):
        items = value.items()
        return {k: _with_text_of_floats(v) for k, v in items if not k.startswith("_pgoutput_")}
    if isinstance(value, list):
        return [_with_text_of_floats(each) for each in value]
    return str(value) if isinstance(value, float) else value


def test_a_filter_on_a_uuid_finds_its_row(carried: Carried, spark: SparkSession) -> None:
    """With bounds in the files it does not; so there are none."""
    name = f"lake.{carried.pipeline.namespace}.k_uuid"
    catalog = load_catalog("lake", **carried.pipeline.catalog_properties)
    table = catalog.load_table((carried.pipeline.namespace, "k_uuid"))
    # Its own types know no value without a literal around it.
    equal: Any = EqualTo
    for key in (keys.LOW, keys.MIDDLE, keys.HIGH):
        found = spark.sql(f"SELECT k FROM {name} WHERE k = '{key}'").collect()
        assert [row.k for row in found] == [key]
        assert table.scan(row_filter=equal("k", key)).to_arrow().num_rows == 1
    # One column was there when the table was made, the other came later.
    for column in ("k", "u"):
        assert table.properties[f"write.metadata.metrics.column.{column}"] == "counts"
        assert table.properties[f"write.parquet.stats-enabled.column.{column}"] == "false"
        assert str(table.schema().find_type(column)) == "uuid"
    later = spark.sql(f"SELECT v FROM {name} WHERE u = '{keys.HIGH}'").collect()
    assert sorted(row.v for row in later) == [2, 20]
