"""on_slot_lost="difference": which tables are compared with the lake, and which are copied without a look."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.lake_comparison import TableDifference
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.capture.lake_comparison import SourceSnapshot
    from tests.capture.pipeline_support import Source


@dataclass
class Equal:
    """Finds that each table of the lake is equal, as the digests of the lake's own fields are here."""

    compared: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def started(self, snapshot: SourceSnapshot) -> Iterator[Iterator[TableDifference]]:
        self.compared = [each.name for each in snapshot.tables]
        yield (TableDifference(each) for each in snapshot.tables)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TYPE inner_pair ADD ATTRIBUTE c text",
        "ALTER TYPE pair ADD ATTRIBUTE c text",
        "ALTER TABLE altered ALTER n TYPE numeric(10,4)",
    ],
)
def test_a_table_whose_type_got_more_than_the_lake_holds_is_copied(
    source: Source, statement: str
) -> None:
    """The lake's own fields are equal in each row, so no digest shows what is new."""
    source.execute(
        "CREATE TYPE inner_pair AS (a int, b int)",
        "CREATE TYPE pair AS (a int, i inner_pair)",
        "CREATE TABLE altered (id int PRIMARY KEY, p pair, n numeric(10,2), ps pair[])",
        "CREATE TABLE same (id int PRIMARY KEY, n numeric(10,2))",
        "INSERT INTO altered VALUES (1, (1, (2, 3)), 4.5, ARRAY[(1, (2, 3))::pair])",
        "CREATE PUBLICATION loss FOR TABLE altered, same",
    )
    options = {"publication_names": ("loss",), "type_options": {"composite": "struct"}}
    first = source.stage(**options)
    source.drop_slot(source.slot_name)
    source.execute(statement)
    comparison = Equal()
    batch = source.stage(
        **options,
        checkpoint=checkpoint_with_shapes(first),
        on_slot_lost="difference",
        lake_comparison=comparison,
    )
    assert comparison.compared == ["public.same"]
    assert {each.name for each in batch.tables if each.copy_lsn} == {"public.altered"}
