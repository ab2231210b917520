"""ClickHouse shows NULL lists, structs and maps as empty ones in tables of pyiceberg, too: it is not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.engines.environments import ROOT, read_with

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "numbers": pa.array([[7], None], pa.list_(pa.int32())),
        "pair": pa.array([{"a": 7}, None], pa.struct([("a", pa.int32())])),
        "words": pa.array([[("k", 7)], None], pa.map_(pa.string(), pa.int32())),
        "said": pa.array(["{7}", None], pa.string()),
    }
)
_KINDS = {
    "id": "scalar",
    "numbers": "list of scalar",
    "pair": "struct",
    "words": "map",
    "said": "scalar",
}
_FULL = [1, [7], [7], [["k", 7]], "{7}"]


@pytest.mark.further
@pytest.mark.parametrize(
    ("engine", "second"),
    [
        ("pyiceberg", [2, None, None, None, None]),
        # As docs/reference/engines.md says it. A text is NULL there.
        ("chdb", [2, [], [None], [], None]),
    ],
)
def test_null_in_a_table_that_pyiceberg_wrote(
    tmp_path: Path, engine: str, second: list[object]
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=_ROWS.schema)
    table.append(_ROWS)
    request = [{"name": "t", "metadata": table.metadata_location, "columns": _KINDS}]
    _, answers = read_with(engine, request, ROOT / ".engines")
    assert sorted(answers["t"]["rows"]) == [_FULL, second]
