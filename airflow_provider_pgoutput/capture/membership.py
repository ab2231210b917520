"""Tables that come and go: which tables a run copies, and which the publications lacked for a while.

The stream does not have what was written to a table while no publication had it. So each run compares the
tables' memberships in publications with what the last applied batch recorded. If that record is gone, the
transactions that wrote the catalog's rows are compared with the oldest transaction that the slot still needs,
and everything that may have changed is named in a warning.

Source: https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY, FAIL
from airflow_provider_pgoutput.batch.membership import FILTERED
from airflow_provider_pgoutput.capture.request import ALWAYS
from airflow_provider_pgoutput.capture.source.attributes import read_attributes
from airflow_provider_pgoutput.capture.source.catalog import read_names
from airflow_provider_pgoutput.capture.source.publications import (
    attached_partitions,
    changed_since_slot,
    partitions_below,
    with_generated_columns,
)
from airflow_provider_pgoutput.errors import ConfigurationError, PublicationChanged, TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMembership
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.capture.refused import RefusedTables
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.attributes import Attribute
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.source.publications import AttachedPartition
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: Letters of ``TableMembership.leaves_out``: insert, update, delete, truncate.
_OPERATIONS = frozenset("iudt")


def seen_from_server(session: Session, server: Server, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, in which a table of an earlier system keeps its OID only if this server has it, too.

    ``pg_upgrade`` keeps the OIDs of tables and the numbers of columns. Other ways to another server do not:
    there, the OID may be that of another table, or the number that of another column.
    """
    is_earlier = checkpoint.system_identifier != server.system_identifier
    unsure = frozenset(checkpoint.tables or ()) if is_earlier else checkpoint.earlier_oids
    if not unsure:
        return checkpoint
    names, attributes = read_names(session, unsure), read_attributes(session, unsure)
    known, newest = checkpoint.tables or {}, checkpoint.newest_oids
    return checkpoint.by_name_only(
        {
            oid
            for oid in unsure
            if known[oid] != ".".join(names.get(oid, ()))
            # The table had another OID since. Example: the third system gives it the OID of the first one.
            or newest[known[oid]] != oid
            or not _has_columns_of(attributes.get(oid, ()), checkpoint.shapes.get(oid))
        }
    )


def _has_columns_of(attributes: Sequence[Attribute], shape: Shape | None) -> bool:
    """Whether a table still has its columns: none got another number, and no number another column.

    Columns that came or went do not count.
    """
    if shape is None:
        return True
    then = {e.name: e.number for e in shape.columns if e.number}
    then |= {e.name: e.number for e in shape.masks if e.number}
    now = {each.name: each.number for each in attributes if not each.is_dropped}
    named = dict(zip(now.values(), now, strict=True))
    return all(
        now.get(name, number) == number and named.get(number, name) == name
        for name, number in then.items()
    )


def warn_of_membership_changes(
    session: Session, slot_name: str, publication_names: Sequence[str]
) -> tuple[str, ...]:
    """Warn of publications that were altered and of tables that were added since the slot's position.

    The oldest transaction that the slot still needs is the limit. It may be older than the slot's position,
    so two runs may give the same warning. No change is missed.

    :returns: the altered publications and the added tables, as the warnings name them.
    """
    changed = changed_since_slot(session, slot_name, publication_names)
    for publication, table in changed:
        if table is None:
            log.warning(
                "Publication %s was altered since the slot's position: operations that it did not"
                " publish for a while are not in the stream.",
                publication,
            )
        else:
            log.warning(
                "Publication %s took up %s since the slot's position: what was written to the table"
                " before that is not in the stream. Copy the table again if anything was.",
                publication,
                table,
            )
    return tuple(table or publication for publication, table in changed)


def without_ignored(
    published: Sequence[PublishedTable],
    checkpoint: Checkpoint | None,
    request: CaptureRequest,
    refused: RefusedTables,
) -> tuple[tuple[PublishedTable, ...], RefusedTables]:
    """The published tables, without those that are new to the lake if ``on_new_table`` does not copy these.

    A table that was made again under a known name is not new. ``on_recreated_table`` decides about it.

    :returns: the tables, and ``refused`` with the new tables that are set aside.
    :raises TableRefused: there is a new table, the policy is to fail, and it is not set aside.
    """
    seen = None if checkpoint is None else checkpoint.tables
    if request.on_new_table == COPY or seen is None:
        return tuple(published), refused
    known = {*seen.values(), *request.copy_tables}
    new = sorted(
        (each for each in published if each.relation_oid not in seen and each.name not in known),
        key=lambda each: each.name,
    )
    if request.on_new_table == FAIL:
        for each in new:
            error = TableRefused(
                "The table is published, and the lake does not have it.",
                slot=request.slot_name,
                table=each.name,
                advice="name it in copy_tables, which copies it in this run, or take it out of the"
                " publication; on_new_table='copy' copies whatever is published, 'ignore' leaves out what is"
                " new.",
            )
            refused = refused.adding(each, error)
    elif new:
        log.warning(
            "Published and not in the lake, so left out until copy_tables names them: %s",
            ", ".join(each.name for each in new),
        )
    return tuple(each for each in published if each not in new), refused


def tables_to_copy(
    published: Sequence[PublishedTable],
    checkpoint: Checkpoint | None,
    request: CaptureRequest,
    refused: RefusedTables,
    gaps: frozenset[int] = frozenset(),
) -> tuple[tuple[PublishedTable, ...], RefusedTables]:
    """The published tables that this run copies: those that are asked for, and those that the lake never saw.

    Without a checkpoint the lake is empty or was loaded from outside. Then only the tables in ``copy_tables``
    are copied.

    A table that was dropped and made again has a name that the lake knows with another OID. The copy would
    replace the rows of the earlier table, so it is made only if the request says so.

    :param gaps: OIDs of tables that the publications lacked for a while.
    :returns: the tables, and ``refused`` with those that are set aside.
    :raises ConfigurationError: a table that is asked for is not published.
    :raises TableRefused: a table was dropped and made again, or is new, the policy is to fail, and it is not
        set aside.
    """
    names = {each.name for each in published}
    if missing := sorted(set(request.copy_tables) - names):
        raise ConfigurationError(
            f"copy_tables names tables that are not published: {', '.join(missing)}.",
            slot=request.slot_name,
            advice=_how_to_name(missing, published, checkpoint),
        )
    published, refused = without_ignored(published, checkpoint, request, refused)
    lake_tables = None if checkpoint is None else checkpoint.tables
    copies_new = request.initial_copy == ALWAYS and lake_tables is not None
    seen = lake_tables or {}
    known = set(seen.values())
    recreated = [
        each
        for each in published
        if each.relation_oid not in seen
        and each.name in known
        and each.name not in request.copy_tables
    ]
    renamed = _replaced(published, seen)
    if request.on_recreated_table == FAIL:
        for each in recreated:
            error = _recreated(each, renamed.get(each.name), request.slot_name)
            refused = refused.adding(each, error)
        published = tuple(each for each in published if not refused.has(each))
        recreated = []
    wanted = {*request.copy_tables, *(each.name for each in recreated)}
    # A table was renamed, and another took its name. The copy of the new one replaces the lake's rows under
    # that name. So the renamed table is copied, too.
    wanted |= {now for name, now in renamed.items() if name in wanted}
    copied = tuple(
        each
        for each in published
        if each.name in wanted
        or (copies_new and (each.relation_oid not in seen or each.relation_oid in gaps))
    )
    for each in published:
        is_new = lake_tables is not None and each.relation_oid not in seen and each in copied
        if each.relation_oid in gaps and not is_new:
            log.warning(
                "For a while since the last batch, the publications lacked %s, or some of its rows, columns"
                " or partitions. What was written there meanwhile is not in the stream. %s",
                each.name,
                "It is copied again." if each in copied else "Name it in copy_tables.",
            )
    return copied, refused


def _how_to_name(
    missing: Sequence[str], published: Sequence[PublishedTable], checkpoint: Checkpoint | None
) -> str:
    """What to write in ``copy_tables`` instead. A table set aside may have been renamed since."""
    names = {each.relation_oid: each.name for each in published}
    in_lake = (checkpoint and checkpoint.tables) or {}
    renamed = [
        f"{name} is {names[oid]} now"
        for oid, name in sorted(in_lake.items())
        if name in missing and oid in names
    ]
    if renamed:
        return f"write the names of today: {', '.join(renamed)}."
    return "write them as schema.table, and add them to a publication that is read."


def _recreated(table: PublishedTable, renamed_to: str | None, slot_name: str) -> TableRefused:
    """The error for a table under the name of another one that the lake has."""
    return TableRefused(
        "The table was dropped and created again, and the lake has the rows of the earlier table."
        if renamed_to is None
        else f"The table was renamed to {renamed_to}, and another made under its name, new to the lake.",
        slot=slot_name,
        table=table.name,
        advice="name it in copy_tables, which replaces them in this run; on_recreated_table='copy' does so"
        " whenever it happens.",
    )


def changes_of_membership(
    session: Session, before: PublishedSet, now: PublishedSet, *, slot_name: str
) -> frozenset[int]:
    """Compare two states of the publications. Warn of what the stream cannot carry.

    :returns: OIDs of the tables that the publications lacked for a while in between, or of which they lacked
        rows that are published now.
    :raises PublicationChanged: partitions are published under other names than before.
    """
    refuse_other_root(before, now, slot_name=slot_name)
    earlier = {each.oid: each for each in before.publications}
    gaps = set(_newly_generated(session, before, now))
    for publication in now.publications:
        was = earlier.get(publication.oid)
        # If it was made again, all of its tables are copied, so it needs no warning.
        if was is not None and was.written_by != publication.written_by:
            log.warning(
                "Publication %s was altered: operations that it did not publish for a while are not in the"
                " stream.",
                publication.name,
            )
    known = {each.relation_oid: each for each in before.tables}
    both = [(known[each.relation_oid], each) for each in now.tables if each.relation_oid in known]
    gaps |= {each.relation_oid for each in now.tables if each.relation_oid not in known}
    gaps |= {table.relation_oid for was, table in both if _has_gap(was, table)}
    gaps |= _roots_that_lack_rows(session, both)
    return frozenset(gaps)


def _newly_generated(session: Session, before: PublishedSet, now: PublishedSet) -> frozenset[int]:
    """Tables with stored generated columns, if a publication sends these now and did not before.

    Older rows were sent without them.
    """
    earlier = {each.oid: each.generated_columns for each in before.publications}
    if not any(
        each.generated_columns and earlier.get(each.oid) is False for each in now.publications
    ):
        return frozenset()
    return with_generated_columns(session, [each.relation_oid for each in now.tables])


def refuse_other_names(
    session: Session,
    both: tuple[PublishedSet, PublishedSet],
    *,
    sent: Sequence[int],
    copied: Collection[int],
    slot_name: str,
) -> None:
    """Refuse rows of partitions that came under another table's name than the partitions have now.

    There are two causes. ``publish_via_partition_root`` was changed and changed back. Or a partition got rows
    as a table of its own before it was attached.

    :param both: what was published when the batch before began, and now.
    :param sent: OIDs of the tables that sent rows, in the batch or left out.
    :param copied: OIDs of the tables that the batch copies. These lack nothing.
    :raises PublicationChanged: it names the table of the rows.
    """
    before, now = both
    published = {each.relation_oid: each.name for each in now.tables}
    known = published.keys() | {each.relation_oid for each in before.tables}
    not_published = sorted(set(sent) - known)
    if not not_published:
        return
    roots = {
        _oid(partition): each.relation_oid
        for each in before.tables
        for partition in each.partitions
    }
    wanted = {roots[oid] for oid in not_published if oid in roots} & published.keys()
    for partitions in partitions_below(session, list(published), not_published).values():
        wanted |= partitions
    # A root that lost a partition at the same time may have the rows of its new one already.
    roots_now = partitions_below(session, not_published, list(published))
    earlier = {each.relation_oid: each for each in before.tables}
    wanted |= {
        root.relation_oid
        for root in now.tables
        if root.relation_oid in roots_now
        and root.relation_oid in earlier
        and not _gone_partitions(earlier[root.relation_oid], root)
    }
    if lacking := sorted(published[oid] for oid in wanted - set(copied)):
        raise PublicationChanged(
            "Rows of partitions came under another table's name since the last batch:"
            " publish_via_partition_root was another for a while, or a partition was a table of its own for"
            " a while.",
            slot=slot_name,
            table=lacking[0],
            advice=f"name {', '.join(lacking)} in copy_tables once; a table that the lake gets under the "
            "other name can be dropped.",
        )


def _has_gap(before: TableMembership, now: TableMembership) -> bool:
    """Whether rows that are published now were not published at some time since."""
    kept = set(before.memberships) & set(now.memberships)
    if not kept:
        return True
    out_before, out_now = dict(before.leaves_out), dict(now.leaves_out)
    # A membership that was there all the time, without a row filter, sent every change of its operations.
    carried = {
        operation
        for each in kept
        if not each.endswith(FILTERED)
        for operation in _OPERATIONS - {*out_before.get(each, ""), *out_now.get(each, "")}
    }
    added = set(now.memberships) - kept
    return any(not carried.issuperset(_OPERATIONS - set(out_now.get(each, ""))) for each in added)


def refuse_other_root(
    before: PublishedSet, now: PublishedSet, *, slot_name: str, by_name_only: bool = False
) -> None:
    """Refuse partitions that are published under other names than before.

    :param by_name_only: whether the OIDs of before are those of another system.
    :raises PublicationChanged: it names the publication.
    """
    by_oid = {} if by_name_only else {each.oid: each for each in before.publications}
    by_name = {each.name: each for each in before.publications}
    for publication in now.publications:
        # A publication that was dropped and made again is the same to its reader, but has another OID.
        was = by_oid.get(publication.oid) or by_name.get(publication.name)
        if was is not None and was.via_partition_root != publication.via_partition_root:
            value = str(publication.via_partition_root).lower()
            earlier = str(was.via_partition_root).lower()
            raise PublicationChanged(
                f"publish_via_partition_root of publication {publication.name} was {earlier} and is {value} "
                "now, which gives the rows of partitioned tables another table in the lake.",
                slot=slot_name,
                advice=f"set it to {earlier} again and name the partitioned tables in copy_tables once; or"
                " read the publication with a new slot into another namespace.",
            )


def _replaced(published: Sequence[PublishedTable], seen: Mapping[int, str]) -> dict[str, str]:
    """Tables that were renamed while another took their name: by name in the lake, the current name."""
    names = {each.name: each.relation_oid for each in published}
    return {
        seen[each.relation_oid]: each.name
        for each in published
        if each.relation_oid in seen
        and seen[each.relation_oid] != each.name
        and names.get(seen[each.relation_oid], each.relation_oid) != each.relation_oid
    }


def _roots_that_lack_rows(
    session: Session, both: Sequence[tuple[TableMembership, TableMembership]]
) -> frozenset[int]:
    """Look at partitions that came or went. The stream does not tell, and has no rows for either.

    :param both: each table as it was and as it is.
    :returns: OIDs of the tables that got partitions with rows.
    """
    came = {
        now.relation_oid: [
            _oid(partition) for partition in sorted(set(now.partitions) - set(before.partitions))
        ]
        for before, now in both
    }
    roots = {oid: root for root, partitions in came.items() for oid in partitions}
    attached = attached_partitions(session, roots) if roots else {}
    lacking = set()
    for before, now in both:
        found = [attached[oid] for oid in came[now.relation_oid] if oid in attached]
        gone = _gone_partitions(before, now)
        # One transaction that moves rows to a new partition and drops their old one adds no rows to the root.
        brought = [
            each for each in found if each.has_older_rows or (each.has_rows_of_attach and not gone)
        ]
        unsure = [each for each in found if each not in brought and each.has_rows is not False]
        if brought:
            lacking.add(now.relation_oid)
            log.warning(
                "%s got partitions that were tables of their own and had rows: %s. These rows are not in the"
                " stream.",
                now.name,
                _names(brought),
            )
        if unsure:
            log.warning(
                "%s got partitions that were tables of their own: %s. Rows that they brought are not in the"
                " stream: name the table in copy_tables if there were any.",
                now.name,
                _names(unsure),
            )
        if gone:
            log.warning(
                "%d partitions of %s were detached or dropped. PostgreSQL sends no deletes for that: their"
                " rows stay in the lake until the table is copied again.",
                gone,
                now.name,
            )
    return frozenset(lacking)


def _gone_partitions(before: TableMembership, now: TableMembership) -> int:
    """How many partitions the table had and has no more."""
    return len(set(before.partitions) - set(now.partitions))


def _names(partitions: Sequence[AttachedPartition]) -> str:
    return ", ".join(sorted(each.name for each in partitions))


def _oid(partition: str) -> int:
    """The OID of a partition, as ``TableMembership`` has it."""
    return int(partition.split(" ", maxsplit=1)[0])


def begins_a_lake(sealed: Manifest, request: CaptureRequest) -> bool:
    """Whether a sealed batch that waits may be the first batch of a lake, which has no rows to change yet.

    A batch that was staged for another lake, or for this one before it was emptied, changes tables without a
    copy of them.
    """
    lacking = sorted(table.name for table in sealed.tables if table.copy_lsn is None)
    if lacking and request.initial_copy == ALWAYS:
        log.warning(
            "The lake has no checkpoint, so a sealed batch is passed over that changes tables without a"
            " copy of them: %s. All tables are copied.",
            ", ".join(lacking),
        )
        return False
    return holds_copies(sealed, request.copy_tables)


def holds_copies(sealed: Manifest, copy_tables: Sequence[str], *, or_refuses: bool = False) -> bool:
    """Whether a batch that waits to be applied has the copies that are asked for.

    If a copy is missing, the batch is not taken as it is. Perhaps it cannot be applied without the copy.

    :param or_refuses: a copy also counts that was asked for and refused when the batch was staged.
    """
    copied = {table.name for table in sealed.tables if table.copy_lsn is not None}
    if or_refuses:
        copied |= sealed.answered_copies
    if missing := sorted(set(copy_tables) - copied):
        log.info("The sealed batch lacks the copy of %s.", ", ".join(missing))
    return not missing
