"""Refuses a table that got a batch of the lost slot after it was compared with the source.

After a lost slot, and for a new source, a batch has only the rows of a table in which the lake differed
(``capture/copy/difference.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table


def refuse_past_comparison(
    marker: Marker | None, table: Table, target: str, manifest: Manifest
) -> None:
    """Refuse a table that got a batch between its comparison and this batch.

    Example: at the source a row is changed from x to y, and back to x. The lake is before both changes. It
    has x, so the comparison finds no difference. Then a late driver applies a batch of the lost slot, which
    has the change to y only. Nothing would make the row x again.

    :param marker: of the newest batch that the table has; None: it has none.
    :param table: of the batch.
    :param target: ``namespace.table`` of the lake.
    :raises TableRefused: it got one. No later batch would mend its rows.
    """
    if marker is None or not table.is_difference or marker.batch_id == manifest.batch_id:
        return
    if manifest.start_lsn < marker.end_lsn < manifest.end_lsn:
        raise TableRefused(
            f"The table was compared with the source when the lake was at {manifest.start_lsn}. After that it"
            f" got a batch up to {marker.end_lsn}.",
            slot=manifest.slot_name,
            table=target,
            lsn=marker.end_lsn,
            advice="apply the batch with on_table_refused='set_aside', then copy the table again"
            f" (copy_tables=[{table.name!r}]).",
        )
