"""Where the apply of a table begins, or why the table is refused: checks before anything is written.

``rows/prepare.py`` writes. ``checkpoint.py`` and ``rows/staged_files.py`` check the batch as a whole.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.schema.column_map import known_fields
from airflow_provider_pgoutput.apply.table.compared import refuse_past_comparison
from airflow_provider_pgoutput.apply.table.constant_columns import refuse_taken_names
from airflow_provider_pgoutput.apply.table.given_up import refuse_unless_copied, systems_given_up
from airflow_provider_pgoutput.apply.table.row_filter import refuse_other_filter
from airflow_provider_pgoutput.apply.table.target import properties, refuse_unfit
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.shape import masked_columns
from airflow_provider_pgoutput.errors import (
    BatchGap,
    LakeUnavailable,
    TableRefused,
    TableRolledBack,
)
from airflow_provider_pgoutput.masks import (
    WITH_OTHER_HASHES,
    in_words,
    is_hash,
    masks_from,
)
from airflow_provider_pgoutput.slices import SHARED_BY, slices_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.masks import MaskedColumn

#: With this property Spark accepts any columns for a table, and then cannot run a MERGE.
_ANY_SCHEMA = "write.spark.accept-any-schema"
#: Iceberg takes a commit that is at most this much older than the one before it, see its ``TableMetadata``.
_CLOCKS_DIFFER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Start:
    """Where the apply of one table begins."""

    #: Changes with a commit LSN before this are already in the table, or in the copy.
    floor: Lsn
    #: Whether the copy in the batch is applied. In upsert mode it replaces what the table holds.
    copies: bool
    #: Whether the table already has the whole batch.
    done: bool
    #: Main's head when this was decided. Work on another head is refused.
    head: int | None = None
    #: Whether the user loaded the table, and it may already have changes of this batch.
    overlaps: bool = False
    #: Whether the user loaded the table (``start_lsn``), and nothing was applied to it yet.
    loaded: bool = False
    #: The checkpoint, if it is past the start of the batch, because the slot was read again.
    lake_lsn: Lsn | None = None


def refuse_other_deletes(target: Target, table: IcebergTable) -> None:
    """Refuse to rebuild a table with another setting of ``soft_delete`` than the pipeline has.

    :raises TableRefused: deleted rows that the table keeps would be lost.
    """
    wanted = str(target.soft_delete).lower()
    if table.properties.get(lake_names.PROPERTY_SOFT_DELETE, wanted) != wanted:
        raise TableRefused(
            f"The pipeline writes the table with soft_delete={not target.soft_delete}.",
            table=target.name.target,
            advice="give soft_delete as the pipeline has it.",
        )


def start(spark: SparkSession, target: Target, manifest: Manifest, progress: Progress) -> Start:
    """Look at the table and decide where to begin.

    :raises TableRefused: it cannot be a table of the lake, see ``refuse_unfit``. Or another pipeline or
        somebody else owns the target, or it is of another table of the source.
    :raises TableRolledBack: the target is older than the checkpoint says.
    :raises BatchGap: an earlier batch was never applied to it.
    :raises LakeUnavailable: it was written with a clock that is ahead of this one.
    """
    refuse_unfit(target, manifest)
    table = IcebergTable.load(spark, target.name)
    copy_lsn = Lsn.parse(target.source.copy_lsn) if target.source.copy_lsn else None
    marker, loaded, behind = None, False, False
    given_up: frozenset[str] = frozenset()
    whole = target.options.properties if table is None else table.whole_properties
    _refuse_any_schema(target, whole)
    if table is not None:
        refuse_other_sharing(target, whole, manifest)
        found = table.applied(manifest.slot_name)
        marker, behind = found.marker, found.lacks_published
        loaded = _was_loaded(table, marker, target, manifest, progress) and not behind
        given_up = systems_given_up(table, marker, manifest, progress)
        if not behind:
            _refuse_other_source(table, marker, target, manifest, given_up, loaded=loaded)
        if refuse_unless_copied(
            target.source,
            target.name.target,
            manifest,
            marker,
            given_up,
            keeps_past=target.keeps_past,
        ):
            # Its LSNs mean nothing here, and the copy replaces the table's rows.
            marker, behind = None, False
    known = progress.end_of(target.name, target.source)
    recorded = max(filter(None, (progress.end_lsn, known)), default=None)
    applied = marker.reaches(manifest.batch_id, recorded) if marker else None
    copies = copy_lsn is not None and (
        applied is None
        or applied <= copy_lsn
        # The table may have newer changes than the copy. The copy may replace them, because the batch has
        # all changes after the copy. Only a table that keeps the past would get them twice.
        or (applied < manifest.end_lsn and not target.keeps_past)
    )
    if copies and applied and target.is_log and applied < manifest.end_lsn:
        _refuse_gap_in_log(target, progress)
    has_it = applied is not None and applied >= manifest.end_lsn and not copies
    if not has_it and (progress.end_lsn is None or progress.end_lsn < manifest.end_lsn):
        # The lake's rows may be of a table that was renamed or made again at the source since.
        _refuse_renamed(target, progress, copies)
        refuse_past_comparison(marker, target.source, target.name.target, manifest)
        if given_up:
            _refuse_taken(target, manifest, progress)
        else:
            _refuse_made_again(table, target, manifest)
    if table is not None and not has_it:
        _refuse_other_rows(target, table, copies=copies, loaded=loaded)
    if not copies and (behind or (known is not None and (applied is None or applied < known))):
        raise TableRolledBack(
            f"The checkpoint says {known or 'nothing'}, the table says {applied or 'nothing'}.",
            slot=manifest.slot_name,
            table=target.name.target,
            lsn=known,
            advice=f"copy the table again (copy_tables=[{target.source.name!r}]), replay its batches in place"
            " (PgoutputReplayOperator), or bring back its newest snapshot.",
        )
    if not progress.exists and not copies and applied and manifest.start_lsn > applied:
        raise BatchGap(
            f"The batch starts at {manifest.start_lsn}, and the checkpoint table is gone.",
            slot=manifest.slot_name,
            table=target.name.target,
            lsn=applied,
            advice="apply the batches between, in order.",
        )
    floor = copy_lsn if copies and copy_lsn else max(applied or Lsn(0), copy_lsn or Lsn(0))
    if not copies and progress.end_lsn is not None:
        # The slot was read again. Rows that committed before the checkpoint are in the table, or were left
        # out of it on request. That holds also if no batch changed the table lately.
        floor = max(floor, progress.end_lsn)
    done = applied is not None and applied >= manifest.end_lsn
    if table is not None and not done:
        _refuse_future(table)
    # Capture ends the first batch past the load, so later batches cannot overlap with it. The checkpoint does
    # not show which batch is the first: a rebuilt checkpoint exists before it.
    overlaps = loaded and not copies and manifest.loaded_lsn == str(manifest.start_lsn)
    lake = progress.end_lsn if (progress.end_lsn or 0) > manifest.start_lsn else None
    head = None if table is None else table.head
    return Start(floor, copies, done, head, overlaps, loaded, lake)


def _refuse_other_rows(target: Target, table: IcebergTable, *, copies: bool, loaded: bool) -> None:
    """Refuse changes that were masked or filtered in another way than the rows that the table keeps."""
    if target.slice is None:
        refuse_taken_names(target.source.name, target.constants, table, loaded=loaded)
    if not copies:
        refuse_other_masks(target, table)
        refuse_other_filter(target.source, table.properties)


def masks_of_rows(table: IcebergTable) -> tuple[MaskedColumn, ...]:
    """The masks of the table's rows."""
    return masks_from(json.loads(table.properties.get(lake_names.PROPERTY_MASKS) or "[]"))


def refuse_other_masks(target: Target, table: IcebergTable, advice: str = "") -> None:
    """Refuse changes whose masks are not those of the table's rows.

    :param advice: what helps; empty: a copy of the table.
    :raises TableRefused: rows would not be found by their key, or a column would be masked in some rows only.
    """
    oid = target.source.relation_oid
    of_rows = {each.number: each.mask for each in masks_of_rows(table)}
    fields = known_fields(table, oid).keys() | of_rows.keys()
    for version in target.source.versions:
        masks = {each.number: each for each in masked_columns(version)}
        names = {each.attribute_number or 0: each.name for each in version.columns}
        names |= {number: each.name for number, each in masks.items()}
        for number in sorted(names.keys() & fields):
            found = of_rows.get(number)
            wanted = masks[number].mask if number in masks else None
            if found != wanted:
                is_other = found is not None and wanted is not None
                raise TableRefused(
                    WITH_OTHER_HASHES
                    if is_other and is_hash(str(found)) and is_hash(str(wanted))
                    else f"The column is {in_words(found)} in the lake, and {in_words(wanted)} in the batch.",
                    table=target.source.name,
                    column=names[number],
                    advice=advice
                    or f"copy the table again (copy_tables=[{target.source.name!r}]).",
                )


def _refuse_gap_in_log(target: Target, progress: Progress) -> None:
    """Refuse a copy into a change log that has rows and is set aside. After it, nothing would show the gap.

    The checkpoint may not know the rows: the task was killed after it had published them.
    """
    if target.source.relation_oid in progress.set_aside:
        raise TableRefused(
            "The change log lacks batches, and a copy does not bring them.",
            table=target.name.target,
            advice="set its target to a new name, and copy it again"
            f" (copy_tables=[{target.source.name!r}]).",
        )


def _refuse_any_schema(target: Target, properties: Mapping[str, str]) -> None:
    if properties.get(_ANY_SCHEMA, "").lower() == "true" and not target.is_log:
        raise TableRefused(
            f"With its property {_ANY_SCHEMA} Spark can delete no row of it by key.",
            table=target.name.target,
            advice="take the property from the table and from its options.",
        )


def _refuse_future(table: IcebergTable) -> None:
    """Refuse a table that was written with a clock ahead of this machine's.

    Iceberg would refuse the first commit, but its error does not speak of clocks.

    :raises LakeUnavailable: the table was last written at a time that is still to come.
    """
    ahead_ms = (table.head_ms or 0) - int(time.time() * 1000)
    if ahead_ms > _CLOCKS_DIFFER_MS:
        raise LakeUnavailable(
            f"The table was last written {ahead_ms // 1000} seconds after what this machine's clock says, and"
            " Iceberg takes no commit that is older.",
            table=table.name.target,
            advice="set the clocks of all machines that write to the lake; nothing is lost, and a try"
            " succeeds as soon as this clock has caught up.",
        )


def _was_loaded(
    table: IcebergTable,
    marker: Marker | None,
    target: Target,
    manifest: Manifest,
    progress: Progress,
) -> bool:
    """Whether the user loaded the table's rows, and said so with ``start_lsn``."""
    recorded = progress.end_of(target.name, target.source)
    unknown = marker is None and recorded is None
    return (
        manifest.loaded_lsn is not None and unknown and not table.is_empty and not target.keeps_past
    )


def _refuse_other_source(
    table: IcebergTable,
    marker: Marker | None,
    target: Target,
    manifest: Manifest,
    given_up: frozenset[str],
    *,
    loaded: bool,
) -> None:
    found, ours = table.properties, properties(target, manifest)
    earlier = {*given_up, *(each.system_identifier for each in manifest.adopted_from)}
    for key, what in (
        (lake_names.PROPERTY_SLOT, "slot"),
        (lake_names.PROPERTY_SYSTEM_IDENTIFIER, "PostgreSQL system"),
    ):
        is_known = key == lake_names.PROPERTY_SYSTEM_IDENTIFIER and found.get(key) in earlier
        if key in found and found[key] != ours[key] and not is_known:
            if target.slice is not None:
                raise TableRefused(
                    f"The rows with these constants are written from another {what}.",
                    table=target.name.target,
                    advice="give constant_columns a text that no other table of this target has.",
                )
            raise TableRefused(
                f"The table is written from another {what}.",
                table=target.name.target,
                advice="name another target, or drop this table if it is no longer needed.",
            )
    mode = found.get(lake_names.PROPERTY_MODE, target.mode)
    if mode != target.mode:
        raise TableRefused(
            f"The table was written in mode {mode!r}, the job says {target.mode!r}.",
            table=target.name.target,
            advice="name another target for the other mode, and copy the table again"
            f" (copy_tables=[{target.source.name!r}]).",
        )
    if marker is None and not target.is_log and not table.can_delete_rows:
        raise TableRefused(
            "The table is of Iceberg's format version 1, in which no row can be deleted.",
            table=target.name.target,
            advice="ALTER TABLE <it> SET TBLPROPERTIES ('format-version' = '2').",
        )
    if marker and marker.system_identifier not in {manifest.system_identifier, *earlier}:
        raise TableRefused(
            "The table was written from another PostgreSQL system.",
            table=target.name.target,
            advice="name another target, or drop this table if it is no longer needed.",
        )
    if marker and not given_up:
        _refuse_past_adoption(marker, target, manifest)
    if marker is None and not table.is_empty and not loaded:
        raise TableRefused(
            "The table holds rows that this pipeline did not write.",
            table=target.name.target,
            advice="name another target, or drop this table if it is no longer needed; if the rows were "
            "loaded from this source, say so with start_lsn.",
        )


def refuse_other_sharing(target: Target, whole: Mapping[str, str], manifest: Manifest) -> None:
    """Refuse to write to a table as a shared one if it is not, or the other way round, or to another slice.

    :param whole: the properties of the table, with those of all slices.
    :raises TableRefused: rows of others would be lost, or the rows that the table has would stay for good.
    """
    ours = target.slice
    shared_by = None if ours is None else ours.shared_by
    if whole.get(SHARED_BY) != shared_by:
        in_lake, asked = (
            "not shared" if each is None else f"shared by {each}"
            for each in (whole.get(SHARED_BY), shared_by)
        )
        raise TableRefused(
            f"The table of the lake is {in_lake}, and by table_options it is {asked}.",
            table=target.name.target,
            advice="name another target, or give shared and constant_columns as the table has them.",
        )
    if ours is None:
        return
    wanted = str(target.soft_delete).lower()
    if whole.get(lake_names.PROPERTY_SOFT_DELETE, wanted) != wanted:
        raise TableRefused(
            f"Another pipeline writes the table with soft_delete={not target.soft_delete}.",
            table=target.name.target,
            advice="give all pipelines of a shared table the same soft_delete.",
        )
    for other in slices_of(whole):
        if other != ours and _is_of_source(other.seen(whole), target, manifest):
            raise TableRefused(
                "The table has rows of this source with other constants.",
                table=target.name.target,
                advice="give constant_columns as before, or name another target and copy the table again"
                f" (copy_tables=[{target.source.name!r}]).",
            )


def _is_of_source(found: Mapping[str, str], target: Target, manifest: Manifest) -> bool:
    """Whether a slice has rows of the source of a target.

    A table of an earlier system is known by its name: its OID may be that of another table by now.

    :param found: the properties of the slice.
    """
    if found.get(lake_names.PROPERTY_SLOT) != manifest.slot_name:
        return False
    if found.get(lake_names.PROPERTY_SYSTEM_IDENTIFIER) == manifest.system_identifier:
        oid = str(target.source.relation_oid)
        return found.get(lake_names.PROPERTY_RELATION_OID) == oid
    return found.get(lake_names.PROPERTY_SOURCE_TABLE) == target.source.name


def _refuse_past_adoption(marker: Marker, target: Target, manifest: Manifest) -> None:
    """Refuse a table that has a batch which was not there when it was compared with the new system.

    It is a batch of an earlier system past the adoption, or one of another adoption. A copy replaces the
    table's rows.

    :raises TableRefused: there are such batches, and no copy.
    """
    follows = manifest.systems.have(marker.system_identifier, marker.end_lsn)
    if manifest.adopts and marker.batch_id != manifest.batch_id:
        follows = follows and not manifest.start_lsn < marker.end_lsn < manifest.end_lsn
    is_copied = target.source.copy_lsn is not None and marker.end_lsn < manifest.end_lsn
    if not follows and not is_copied:
        raise TableRefused(
            f"The table has a batch of system {marker.system_identifier} up to {marker.end_lsn}, and the lake"
            f" was at {manifest.systems.adopted_at} when system {manifest.system_identifier} was adopted.",
            slot=manifest.slot_name,
            table=target.name.target,
            lsn=marker.end_lsn,
            advice=f"copy the table again (copy_tables=[{target.source.name!r}]).",
        )


def _refuse_renamed(target: Target, progress: Progress, copies: bool) -> None:
    earlier = progress.target_of.get(target.source.relation_oid)
    if earlier and earlier != target.name.target and not copies:
        raise TableRefused(
            f"The table was renamed at the source: until now it was written to {earlier}.",
            table=target.source.name,
            advice="set its target option to the old table's name, or copy it again"
            f" (copy_tables=[{target.source.name!r}]).",
        )


def _refuse_made_again(table: IcebergTable | None, target: Target, manifest: Manifest) -> None:
    oid = properties(target, manifest)[lake_names.PROPERTY_RELATION_OID]
    found = oid if table is None else table.properties.get(lake_names.PROPERTY_RELATION_OID, oid)
    system = manifest.system_identifier
    of_rows = {} if table is None else table.properties
    # On an earlier system another table may have had the OID.
    is_comparable = of_rows.get(lake_names.PROPERTY_SYSTEM_IDENTIFIER, system) == system
    if found != oid and is_comparable:
        _refuse_two_sources(int(found), target, manifest)
    if found != oid and target.source.copy_lsn is None:
        raise TableRefused(
            "The table of this name was dropped and created again at the source.",
            table=target.name.target,
            advice=f"copy the table again (copy_tables=[{target.source.name!r}]), or name another target for"
            " the new one.",
        )


def _refuse_taken(target: Target, manifest: Manifest, progress: Progress) -> None:
    """Refuse a copy over the rows of another table, as far as the checkpoint knows whose they are.

    The table's own property with the OID is of no use here: the adoption that was given up may have set it.
    """
    for oid, name in progress.target_of.items() if target.slice is None else ():
        if name == target.name.target and oid != target.source.relation_oid:
            _refuse_two_sources(oid, target, manifest)


def _refuse_two_sources(earlier_oid: int, target: Target, manifest: Manifest) -> None:
    """Refuse to write over the rows of another table that is still published and is not copied now.

    :raises TableRefused: that table would lose its rows.
    """
    published = () if manifest.published is None else manifest.published.tables
    copied = {each.relation_oid for each in manifest.tables if each.copy_lsn is not None}
    for other in published:
        if other.relation_oid == earlier_oid and earlier_oid not in copied:
            raise TableRefused(
                f"Its target {target.name.target} is also that of {other.name}.",
                table=target.source.name,
                advice="name another target for one of them.",
            )
