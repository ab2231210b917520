"""Lets operators ask the lake of one pipeline for its checkpoint and tables. ``lake/`` does the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.hooks.iceberg import resolve_lake_catalog
from airflow_provider_pgoutput.tasks.arguments import optional_text, required_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.lake.quarantine import Incomplete
    from airflow_provider_pgoutput.lake.state import SlotTable


@dataclass(frozen=True, slots=True)
class Lake:
    """The namespace of one pipeline in one catalog."""

    catalog: LakeCatalog
    namespace: str
    #: The catalog, if it was opened. It is a list, because this class is frozen.
    _opened: list[Catalog] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, task: Any) -> Lake:
        """The lake that the arguments of an operator name.

        :raises ConfigurationError: one of them is missing or wrong.
        """
        catalog = resolve_lake_catalog(
            required_text(task.iceberg_conn_id, "iceberg_conn_id"), optional_text(task.catalog_name)
        )
        return cls(catalog, required_text(task.namespace, "namespace"))

    def checkpoint(self, slot_name: str) -> Checkpoint | None:
        """How far the lake is for this slot. None: no batch was ever applied.

        :raises LakeUnavailable: the catalog or the table cannot be read.
        """
        from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint

        # Opened each time: a job of hours may run between two questions, and a login does not last that long.
        opened = self._open()
        name, properties = self.catalog.name, self.catalog.pyiceberg_properties
        return read_checkpoint(name, properties, self.namespace, slot_name, opened)

    def refuse_login_that_only_reads(self) -> None:
        """Find out before the first batch whether the login of the connection may write, as far as it can be.

        :raises LakeDenied: it may not.
        """
        from airflow_provider_pgoutput.lake.rights import refuse_login_that_only_reads

        refuse_login_that_only_reads(
            self._opened[0] if self._opened else self._open(), self.namespace
        )

    def incomplete(self, slot_name: str) -> dict[int, Incomplete]:
        """The tables with rows in the quarantine, by OID.

        If the checkpoint was read before, and the namespace has no quarantine, this is a single request.

        :raises LakeDenied: the catalog does not let this login read it.
        :raises LakeUnavailable: the catalog or the table cannot be read.
        """
        from airflow_provider_pgoutput.lake.quarantine import incomplete_tables

        catalog = self._opened[0] if self._opened else self._open()
        return incomplete_tables(catalog, self.namespace, slot_name)

    def tables(self, slot_name: str) -> list[SlotTable]:
        """The tables that the slot's pipeline writes, without its own ones. Of a shared table: its slices.

        :raises LakeUnavailable: the catalog or a table cannot be read.
        """
        from airflow_provider_pgoutput.lake.state import tables_of_slot

        return tables_of_slot(self._open(), self.namespace, slot_name)

    def _open(self) -> Catalog:
        from airflow_provider_pgoutput.lake.state import open_catalog

        self._opened[:] = [open_catalog(self.catalog.name, self.catalog.pyiceberg_properties)]
        return self._opened[0]

    def targets_of(self, slot_name: str, batch_id: str) -> tuple[str, ...]:
        """The tables of the lake that have the changes of a batch, as ``namespace.table``.

        :raises LakeUnavailable: the catalog or the table cannot be read.
        """
        return tuple(dict.fromkeys(self.targets_by_oid(slot_name, batch_id).values()))

    def targets_by_oid(self, slot_name: str, batch_id: str) -> dict[int, str]:
        """The same tables, by their OIDs at the source.

        :raises LakeUnavailable: the catalog or the table cannot be read.
        """
        from airflow_provider_pgoutput.lake.state import open_catalog, read_recorded

        catalog = open_catalog(self.catalog.name, self.catalog.pyiceberg_properties)
        return {
            row.relation_oid: row.target
            for row in read_recorded(catalog, self.namespace, slot_name)
            if row.batch_id == batch_id
            and row.relation_oid is not None
            and row.target is not None
            and row.set_aside is None
        }

    def record_empty_batch(self, job: ApplyJob, manifest: Manifest) -> None:
        """Move the checkpoint past a batch that changes no table, without Spark.

        :raises LakeUnavailable: the catalog does not take the new row.
        """
        from airflow_provider_pgoutput.lake.checkpoint_rows import record_empty_batch

        record_empty_batch(self.catalog.name, self.catalog.pyiceberg_properties, job, manifest)
