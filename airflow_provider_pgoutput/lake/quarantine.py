"""Which tables of the lake are incomplete: rows of them are in the quarantine, see ``on_row_refused``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.slot_rows import rows_of_slot

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A table that lacks rows."""

    #: ``schema.table`` of the source in the newest entry.
    table_name: str
    #: Keys as JSON. A key that the lake's type does not hold is NULL here, so several rows may share it.
    keys: frozenset[str]
    #: The commit LSN of the first change that is in the quarantine.
    since_lsn: Lsn

    def __str__(self) -> str:
        return f"{len(self.keys)} keys in {QUARANTINE_TABLE} since LSN {self.since_lsn}"


def incomplete_tables(catalog: Catalog, namespace: str, slot_name: str) -> dict[int, Incomplete]:
    """The tables with rows in the quarantine, by OID.

    :raises LakeUnavailable: the catalog or the table cannot be read.
    """
    identifier = (*namespace.split("."), QUARANTINE_TABLE)
    with lake_errors("read"):
        if not catalog.table_exists(identifier):
            return {}
        columns = ("relation_oid", "table_name", "key", "commit_lsn")
        rows = rows_of_slot(catalog.load_table(identifier), slot_name, columns)
        found = rows.sort_by("commit_lsn").to_pylist()
    tables: dict[int, Incomplete] = {}
    for row in found:
        oid = row["relation_oid"]
        before = tables.get(oid)
        tables[oid] = Incomplete(
            row["table_name"],
            (before.keys if before else frozenset()) | {row["key"]},
            before.since_lsn if before else Lsn(row["commit_lsn"]),
        )
    return tables
