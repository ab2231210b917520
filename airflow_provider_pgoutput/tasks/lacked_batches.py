"""Which staged batches an apply tries again on tables that are set aside, because the cause may be gone.

Each run takes at most 100 batches. It has to read their manifests, and the cause may stay for weeks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.errors import BatchGap, BatchRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: How many batches one apply tries again at most.
MOST_BATCHES = 100


class Lacked(NamedTuple):
    """What an apply tries again."""

    #: The manifests of batches, in order and without a gap.
    uris: tuple[str, ...] = ()
    #: The tables that lack them, as ``schema.table``.
    tables: tuple[str, ...] = ()


def lacked_batches(
    area: StagingArea, checkpoint: Checkpoint | None, manifest: Manifest, manifest_uri: str
) -> Lacked:
    """The tables that are tried again after a batch, and the batches that they lack.

    :param checkpoint: as it is before the batch; None: nothing was applied yet.
    :param manifest: the batch that is about to be applied. The tables lack it, too. If it adopts another
        system, nothing is tried again: it copies these tables itself.
    :param manifest_uri: where this manifest is.
    """
    waiting = [
        each for each in (checkpoint.set_aside.values() if checkpoint else ()) if each.may_pass
    ]
    if checkpoint is None or not waiting:
        return Lacked()
    if manifest.system_identifier != checkpoint.system_identifier:
        return Lacked()
    slot_name, end = manifest.slot_name, checkpoint.end_lsn
    starts = sorted({each.replay_lsn for each in waiting})
    ends = sorted(
        {e.end_lsn for e in sealed_batches(area, slot_name) if starts[0] < e.end_lsn <= end}
    )
    if len(ends) > MOST_BATCHES:
        # Each run begins at another table, so that a table whose cause stays does not hold up the others.
        starts = starts[len(ends) % len(starts) :]
    for first in starts:
        part = [each for each in ends if each > first]
        until = part[MOST_BATCHES - 1] if len(part) > MOST_BATCHES else end
        some = {
            each.relation_oid
            for each in waiting
            if first <= each.replay_lsn and (until == end or each.replay_lsn < until)
        }
        try:
            found = batches_between(area, slot_name, first, until, checkpoint.system_identifier)
        except (BatchGap, BatchRefused) as error:
            # The oldest batches may be pruned. Tables that lack only later ones need not wait.
            names = ", ".join(sorted(e.table_name for e in waiting if e.replay_lsn == first))
            log.warning("%s cannot be tried again: %s", names, error)
            continue
        # A table that was renamed has other names in other batches.
        known = {oid: name for batch in found for oid, name in batch.tables.items() if oid in some}
        uris = [each.manifest_uri for each in found]
        if found[-1].end_lsn == end and manifest.start_lsn <= end < manifest.end_lsn:
            uris.append(manifest_uri)
        return Lacked(tuple(uris), tuple(sorted(known.values()))) if known else Lacked()
    return Lacked()
