"""Rows of a table that are no part of the source's history.

An apply that died may have published a batch in some tables, so the checkpoint lacks the batch. Then the
source may go on without it. Two examples: the adoption of another system was given up, or a standby was
promoted that had not received the last WAL. A copy replaces such
rows. A change log or a history keeps them, so it needs a new target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.earlier_systems import end_before
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table


def systems_given_up(
    table: IcebergTable, marker: Marker | None, manifest: Manifest, progress: Progress
) -> frozenset[str]:
    """The systems that began to write to a table of this pipeline, and whose adoption was given up.

    Example: by the checkpoint a table is of system A, and the table itself names system B. Only the apply of
    the batch that adopts B writes that. The checkpoint has no batch of B, so that apply never ended. This
    batch is of A, so A went on as the source.
    """
    if not progress.exists or table.name.target not in progress.tables:
        return frozenset()
    known = {
        manifest.system_identifier,
        *(each.system_identifier for each in manifest.adopted_from),
    }
    found = {
        table.properties.get(lake_names.PROPERTY_SYSTEM_IDENTIFIER, manifest.system_identifier)
    }
    if marker is not None:
        found.add(marker.system_identifier)
    others = frozenset(found - known)
    return frozenset() if others & progress.strangers else others


def lost_since(marker: Marker | None, manifest: Manifest) -> Lsn | None:
    """Where the source left the timeline of the newest batch, if that ends later; None: no loss is known."""
    if marker is None or marker.system_identifier != manifest.system_identifier:
        return None
    return end_before(manifest.earlier_timelines, marker.timeline, marker.end_lsn)


def refuse_unless_copied(
    source: Table,
    target_name: str,
    manifest: Manifest,
    marker: Marker | None,
    given_up: AbstractSet[str],
    *,
    keeps_past: bool,
) -> bool:
    """Refuse a table with rows that are no part of the source's history, unless they are replaced now.

    :param given_up: see ``systems_given_up``.
    :return: whether it has such rows. Then its marker means nothing.
    :raises TableRefused: it has, and the batch has no copy of it, or the table keeps the past.
    """
    lost = lost_since(marker, manifest)
    if given_up:
        message = (
            f"The adoption of system {', '.join(sorted(given_up))} began to write to the table and did not"
            f" end, and system {manifest.system_identifier} is the lake's source."
        )
    elif lost is not None and marker is not None:
        message = (
            f"The table has a batch up to {marker.end_lsn} of timeline {marker.timeline}. In a promotion the"
            f" source left that timeline at {lost}, and lost what came after."
        )
    else:
        return False
    if source.copy_lsn is not None and not keeps_past:
        return True
    copied = f"copy the table again (copy_tables=[{source.name!r}])."
    raise TableRefused(
        message,
        slot=manifest.slot_name,
        table=target_name,
        lsn=lost,
        advice=f"set its target to a new name, and {copied}" if keeps_past else copied,
    )
