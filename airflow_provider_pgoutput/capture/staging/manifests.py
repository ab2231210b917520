"""Finds the sealed batch that a run needs, and seals a batch.

The manifest is written last and makes the batch exist. The data files are complete and durable before that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.sealed import lost_files, sealed_batches
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import BatchRefused, LakeUnavailable, SlotBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import TypeAlias

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.sealed import SealedBatch

    #: Finds the complete batch with the greatest end among those for which both arguments are true; None:
    #: there is none. The first argument looks at start and end of a batch, the second at its manifest. If
    #: several batches end at the same LSN, the one with the greatest ``preference`` is taken.
    Longest: TypeAlias = (
        "Callable[[Callable[[Lsn, Lsn], bool], Callable[[Manifest], bool]], Manifest | None]"
    )

log = logging.getLogger(__name__)


def find_sealed(
    area: StagingArea,
    slot_name: str,
    system_identifier: str,
    start: Lsn,
    *,
    past: Lsn | None = None,
    server: Server | None = None,
    skip_lsns: Collection[Lsn] = (),
) -> tuple[Manifest, str] | None:
    """The sealed batch with the greatest end among those that start at ``start``.

    Manifests of another system do not count, because it may use the same LSNs. Nor do batches with missing
    files, with a warning: such a batch is staged again.

    :param past: only batches that end past it count.
    :param server: batches of another timeline do not count, and none that end past what the server has. The
        source may have been restored to an earlier time. None: they count.
    :param skip_lsns: batches with a transaction that commits at one of these do not count.
    :returns: the manifest and its URI.
    :raises BatchRefused: a manifest is damaged.
    """

    def counts(from_lsn: Lsn, end: Lsn) -> bool:
        return from_lsn == start and (past is None or end > past)

    def accepts(manifest: Manifest) -> bool:
        known = server is None or (
            manifest.timeline == server.timeline and manifest.end_lsn <= server.flush_lsn
        )
        return (
            known and manifest.system_identifier == system_identifier and manifest.skips(skip_lsns)
        )

    return _with_uri(area, _longest(area, slot_name, counts, accepts))


def find_bridge(
    area: StagingArea, slot_name: str, server: Server, checkpoint: Lsn, confirmed: Lsn
) -> tuple[Manifest, str] | None:
    """The batch that ``first_of_bridge`` chooses among those of a staging area; None: there is none.

    :returns: the manifest and its URI.
    :raises BatchRefused: a manifest is damaged.
    """

    def longest(
        counts: Callable[[Lsn, Lsn], bool], accepts: Callable[[Manifest], bool]
    ) -> Manifest | None:
        system = server.system_identifier
        return _longest(
            area, slot_name, counts, lambda each: each.system_identifier == system and accepts(each)
        )

    return _with_uri(area, first_of_bridge(longest, server, checkpoint, confirmed))


def first_of_bridge(
    longest: Longest, server: Server, checkpoint: Lsn, confirmed: Lsn
) -> Manifest | None:
    """The first sealed batch that bridges the gap between the checkpoint and a slot that is past it.

    It may begin before the checkpoint: two runs at once may each have sealed one, and the shorter was
    applied. Batches from before a restore of the source do not count, because they may contain what never
    happened. If the lake was restored from a backup, several batches may follow the checkpoint. Each run
    returns the next one.

    :param confirmed: the slot's ``confirmed_flush_lsn``.
    """

    # ``position`` begins at the checkpoint, and moves on in the loop below.
    def counts(start: Lsn, end: Lsn) -> bool:
        return start <= position < end <= server.flush_lsn

    def reaches(start: Lsn, end: Lsn) -> bool:
        return counts(start, end) and confirmed <= end

    def accepts(manifest: Manifest) -> bool:
        # A batch of another timeline counts if it ends exactly at the slot's position. After a promotion a
        # synchronised slot goes on from there.
        return manifest.timeline == server.timeline or manifest.end_lsn == confirmed

    first, position = None, checkpoint
    while position < confirmed:
        found = longest(reaches, accepts) or longest(counts, accepts)
        if found is None:
            return None
        first, position = first or found, found.end_lsn
    return first


def preference(manifest: Manifest) -> tuple[int, int, bool]:
    """A sort key for batches that end at one LSN: the greatest is taken.

    First counts the number of skipped transactions, then that of copies. Somebody asked for them after the
    other batches were sealed. Then a batch with changes goes before an empty one.
    """
    return len(manifest.skipped), len(manifest.answered_copies), not manifest.is_empty


def _with_uri(area: StagingArea, found: Manifest | None) -> tuple[Manifest, str] | None:
    return None if found is None else (found, area.uri(found.path))


def make_sure(area: StagingArea, manifest: Manifest, uri: str) -> None:
    """Check that a sealed batch is complete and durable, before it becomes the only copy of its changes.

    :raises LakeUnavailable: a file is missing.
    """
    area.sync(layout.manifest_folder(manifest.slot_name))
    if not _has_files(area, manifest, uri):
        raise LakeUnavailable(
            "Files of the sealed batch are missing in the staging area; the slot was not moved.",
            slot=manifest.slot_name,
            lsn=manifest.end_lsn,
            advice="find out what removes them; the next run stages the batch again.",
        )


def _longest(
    area: StagingArea,
    slot_name: str,
    counts: Callable[[Lsn, Lsn], bool],
    accepts: Callable[[Manifest], bool],
) -> Manifest | None:
    """See ``Longest``. No more manifests are read than needed."""
    found = [
        each for each in sealed_batches(area, slot_name) if counts(each.start_lsn, each.end_lsn)
    ]
    best: Manifest | None = None
    for each in reversed(found):
        if best is not None and each.end_lsn < best.end_lsn:
            break
        manifest = each.read()
        if not accepts(manifest):
            continue
        if best is not None and preference(manifest) <= preference(best):
            continue
        if _has_files(area, manifest, each.uri):
            best = manifest
    return best


def find_ending(
    area: StagingArea,
    slot_name: str,
    system_identifier: str,
    end: Lsn,
    batch_id: str | None = None,
) -> Manifest | None:
    """A sealed batch that ends at ``end``; None: there is none.

    Several may end there. All of them name the same prepared transactions.

    :param batch_id: only this batch, because no other can replace it; None: any.
    :raises BatchRefused: a manifest that ends there is damaged, and no other one can be used.
    """
    damaged: BatchRefused | None = None
    for each in reversed(sealed_batches(area, slot_name)):
        if each.end_lsn != end:
            continue
        try:
            manifest = each.read()
        except BatchRefused as error:
            damaged = error
            continue
        wanted = batch_id is None or manifest.batch_id == batch_id
        if manifest.system_identifier == system_identifier and wanted:
            return manifest
    if damaged is not None:
        raise damaged
    return None


def _has_files(area: StagingArea, manifest: Manifest, uri: str) -> bool:
    """Whether every file of a manifest exists with its size."""
    lost = lost_files(area, manifest)
    if lost:
        log.warning(
            "The manifest %s is passed over: %d of its %d files are missing or of another size, the"
            " first is %s. The batch is staged again if the slot still holds it.",
            uri,
            len(lost),
            len(manifest.paths),
            lost[0],
        )
    return not lost


def seal(
    area: StagingArea,
    manifest: Manifest,
    server_now: Callable[[], Server],
    skip_lsns: Collection[Lsn] = (),
    lake_lsn: Lsn | None = None,
) -> tuple[Manifest, str]:
    """Make the batch exist, unless one that covers it exists already. Return the one that counts.

    :param server_now: reads the source's state when it is called. An older batch that ends past what the
        source has written by then is from before a restore.
    :param skip_lsns: see ``find_sealed``.
    :param lake_lsn: the checkpoint, if the run reads again what the lake has (``start_lsn``). Then no other
        batch can replace this one. This one replaces batches inside its range that wait or are damaged. None:
        an ordinary run, which starts at the checkpoint.
    """
    reach("stage.after_files")
    if (
        lake_lsn is None
        and (other := _covering(area, manifest, server_now(), skip_lsns)) is not None
    ):
        return other
    if manifest.skipped:
        # This comes before the new manifest. A kill between the two may leave no batch. It never leaves the
        # one that was given up.
        _remove_those_that_hold(area, manifest, lake_lsn or manifest.start_lsn)
    _remove_undone(area, manifest, server_now, lake_lsn or manifest.start_lsn)
    _refuse_lost_copies(area, manifest)
    reach("stage.before_manifest")
    area.write_whole(manifest.path, manifest.to_json().encode("ascii"))
    reach("stage.after_manifest")
    if lake_lsn is not None:
        _remove_covered(area, manifest, lake_lsn)
    return manifest, area.uri(manifest.path)


def _refuse_lost_copies(area: StagingArea, manifest: Manifest) -> None:
    """Seal no batch without the files of its copies. An earlier attempt may have made these, long ago.

    :raises LakeUnavailable: one is gone. The next attempt copies the table again.
    """
    files = [
        file
        for table in manifest.tables
        for version in table.versions
        for file in version.files
        if file.kind == "copy"
    ]
    if not files:
        return
    sizes = area.sizes([file.path for file in files])
    lost = [file.path for file, size in zip(files, sizes, strict=True) if size != file.size_bytes]
    if lost:
        raise LakeUnavailable(
            f"{len(lost)} staged files of copied tables are gone, for example {lost[0]}.",
            slot=manifest.slot_name,
            lsn=manifest.end_lsn,
            advice="run the task again: it copies these tables again.",
        )


def _covering(
    area: StagingArea, manifest: Manifest, server: Server, skip_lsns: Collection[Lsn]
) -> tuple[Manifest, str] | None:
    """A sealed batch that has everything that a new one has.

    :raises SlotBusy: it has everything except for the copies.
    """
    other = find_sealed(
        area,
        manifest.slot_name,
        manifest.system_identifier,
        manifest.start_lsn,
        # A batch from before a restore is the reason why this one was staged.
        server=server,
        skip_lsns=skip_lsns,
    )
    if other is None:
        return None
    # A shorter batch lacks changes. A new batch without a range has only copies, and no other replaces it.
    if other[0].end_lsn < manifest.end_lsn or manifest.start_lsn == manifest.end_lsn:
        return None
    lacking = sorted(manifest.answered_copies - other[0].answered_copies)
    if not lacking:
        return other
    if other[0].end_lsn == manifest.end_lsn:
        # It has the same changes and fewer copies. This run seals its own batch and hands that on.
        return None
    raise SlotBusy(
        "Another run sealed a longer batch meanwhile, which lacks the copies that were made here: "
        + ", ".join(lacking),
        slot=manifest.slot_name,
        lsn=other[0].end_lsn,
        advice="run the task again: it takes over the copies that were made here. Let one run at a time use"
        " the slot (max_active_runs=1).",
    )


def warn_of_skipped(manifest: Manifest) -> None:
    """Warn of the transactions that a batch leaves out. A run that takes the batch over calls this."""
    for each in manifest.skipped:
        log.warning(
            "It leaves out the transaction that committed at %s, on request: %s row changes.",
            each.commit_lsn,
            f"{each.changes:,}",
        )


def warn_of_refused_copies(manifest: Manifest, copy_tables: Collection[str]) -> None:
    """Warn of copies that are asked for again and that were refused when the batch was staged."""
    for each in manifest.refused_copies:
        if each.table_name in copy_tables:
            log.warning(
                "It lacks the copy of %s, which was refused. Name it in copy_tables again once the batch is"
                " applied. %s",
                each.table_name,
                each,
            )


def _remove_those_that_hold(area: StagingArea, skipping: Manifest, lake_lsn: Lsn) -> None:
    """Remove the manifests of batches with a transaction that the new batch shall leave out.

    No batch that ends past the checkpoint was applied as a whole. A late task or a replay would bring the
    transaction back.
    """
    left_out = [Lsn.parse(each.commit_lsn) for each in skipping.skipped]
    for sealed, other in _past(area, skipping, lake_lsn):
        holds = any(other.start_lsn <= lsn < other.end_lsn for lsn in left_out)
        if holds and not other.skips(left_out):
            log.warning(
                "The sealed batch %s is given up: it holds what is left out now.", sealed.path
            )
            sealed.remove()


def remove_those_that_wait(area: StagingArea, slot_name: str, lake_lsn: Lsn) -> None:
    """Remove the manifests of batches that start at the checkpoint, before a batch of differences is sealed.

    Such a batch has only the rows in which the lake differs now. Example: a row of the lake is ``x``. A batch
    that waits makes it ``y``, and meanwhile the source has ``x`` again. The new batch lacks the row. If both
    batches were applied, the lake would keep ``y``.
    """
    for sealed in sealed_batches(area, slot_name):
        if sealed.start_lsn == lake_lsn < sealed.end_lsn:
            log.warning(
                "The sealed batch %s was not applied, and is given up for a newer comparison.",
                sealed.path,
            )
            sealed.remove()


def _remove_undone(
    area: StagingArea, later: Manifest, server_now: Callable[[], Server], lake_lsn: Lsn
) -> None:
    """Remove the manifests of batches past the checkpoint whose history the source has left.

    The source was promoted, or restored to a time before their end. Their last transactions may never have
    happened. A late task or a replay would bring these back. What did happen is staged again.
    """
    found = list(_past(area, later, lake_lsn))
    # The list is read first, the server's position second. So a batch that another run sealed in between does
    # not seem to end past the server.
    server = server_now()
    # A standby that was restarted may first have to replay what it had.
    written = None if server.is_standby else server.flush_lsn
    for sealed, other in found:
        if other.timeline < later.timeline:
            why = "the source was promoted since"
        elif other.timeline == later.timeline and written is not None and other.end_lsn > written:
            why = f"it ends past what the source has written, {written}"
        else:
            continue
        log.warning("The sealed batch %s is given up: %s.", sealed.path, why)
        sealed.remove()


def _past(area: StagingArea, ours: Manifest, lsn: Lsn) -> Iterator[tuple[SealedBatch, Manifest]]:
    """Batches of the same slot and system that end past an LSN.

    Damaged ones are left out, because nobody can apply them.
    """
    for sealed in sealed_batches(area, ours.slot_name):
        if sealed.end_lsn <= lsn:
            continue
        found = sealed.read_unless_damaged()
        if found is not None and found.system_identifier == ours.system_identifier:
            yield sealed, found


def _remove_covered(area: StagingArea, again: Manifest, lake_lsn: Lsn) -> None:
    """Remove the manifests of batches inside of one that was read again, except for applied ones and copies.

    The new batch exists already. The next run must find no other batch than the new one. A damaged manifest
    would also end each replay and each prune.
    """
    for sealed in sealed_batches(area, again.slot_name):
        if sealed.start_lsn < again.start_lsn or sealed.end_lsn > again.end_lsn:
            continue
        try:
            other = sealed.read()
        except BatchRefused:
            why = "it is damaged"
        else:
            copies = any(table.copy_lsn is not None for table in other.tables)
            ours = other.system_identifier == again.system_identifier
            is_applied = sealed.end_lsn <= lake_lsn
            if is_applied or copies or not ours or other.batch_id == again.batch_id:
                continue
            why = "it was not applied"
        log.warning(
            "The sealed batch %s gives way to what was read again: %s.", sealed.entry.name, why
        )
        sealed.remove()
