"""Which field of the target is which column of the source, case by case, without Spark."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.apply.layout import lay_out
from airflow_provider_pgoutput.batch.manifest import Column, StagedFile, Table, TableVersion
from airflow_provider_pgoutput.errors import TableRefused


def table(*types: str, copied: int | None = None) -> Table:
    """A table with versions in which column ``b`` has these types; one of them is the copy's."""

    def version(place: int, kind: str) -> TableVersion:
        columns = (
            Column("id", 23, -1, "integer", "int", attribute_number=1),
            Column("b", 25, -1, kind, kind, attribute_number=2),
        )
        staged = "copy" if place == copied else "changes"
        files = (StagedFile(staged, f"{place}.parquet", 1, 1, "", ()),)
        return TableVersion(place + 1, "public", "t", "d", columns, ("id",), files)

    versions = tuple(version(place, kind) for place, kind in enumerate(types))
    return Table(1, "public", "t", versions, copy_lsn=None if copied is None else "0/100")


def test_a_type_that_changed_after_the_copy_does_not_drop_the_copied_values() -> None:
    def laid_out(staged: Table) -> frozenset[str]:
        found = lay_out(
            staged, None, copies=True, type_changes="fail", drop_columns=False, metadata={}
        )
        return found.left_out

    with pytest.raises(TableRefused, match="one of three") as refused:
        laid_out(table("int", "string", copied=0))
    assert refused.value.column == "b"
    # Of a change before the copy, the older values are in no row any more.
    assert laid_out(table("int", "string", copied=1)) == {"b__old_2"}
