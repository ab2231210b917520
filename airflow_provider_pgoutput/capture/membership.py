"""Tables that come and go: which are copied in a run, and which were not published all the time.

What was written to a table while no publication held it is not in the stream and cannot be known from
it. So each run compares by what the tables are published with what the last applied batch recorded. Where
that record is gone, the transactions that wrote the catalog's rows are compared with the oldest one that
the slot holds back, and what may have changed is named. What is not here: the copy.

Source: https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY, FAIL
from airflow_provider_pgoutput.batch.membership import FILTERED
from airflow_provider_pgoutput.capture.request import ALWAYS
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.publication_marks import (
    attached_partitions,
    partitions_below,
    with_generated_columns,
)
from airflow_provider_pgoutput.errors import ConfigurationError, PublicationChanged, TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMark
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: As ``TableMark.leaves_out`` has them: insert, update, delete, truncate.
_OPERATIONS = frozenset("iudt")

# age() is greater for older transactions; it survives the wrap-around of transaction ids.
_CHANGED_QUERY = """
SELECT p.pubname::pg_catalog.text, m.member
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN pg_catalog.pg_publication p
 CROSS JOIN LATERAL (
       SELECT NULL::pg_catalog.text AS member, p.xmin AS written
        UNION ALL
       SELECT pg_catalog.format('%%s.%%s', n.nspname, c.relname), r.xmin
         FROM pg_catalog.pg_publication_rel r
         JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = p.oid) m
 WHERE s.slot_name = %s AND s.catalog_xmin IS NOT NULL AND p.pubname = ANY (%s)
   AND pg_catalog.age(m.written) <= pg_catalog.age(s.catalog_xmin)
 ORDER BY 1, 2 NULLS FIRST
"""


def warn_of_membership_changes(
    session: Session, slot_name: str, publication_names: Sequence[str]
) -> tuple[str, ...]:
    """Name, in warnings, what was altered or added since the slot's position.

    The slot may hold its position's transactions back for longer, so a change can be named again by
    a later run; it is not named for ever, and none is left out.

    :returns: the publications altered and the tables added, as they are named in the warnings.
    """
    with translated():
        rows = session.execute(_CHANGED_QUERY, (slot_name, list(publication_names))).fetchall()
    for publication, table in rows:
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
    return tuple(table or publication for publication, table in rows)


def without_ignored(
    published: Sequence[PublishedTable], checkpoint: Checkpoint | None, request: CaptureRequest
) -> tuple[PublishedTable, ...]:
    """The published tables but those that are new to the lake, when ``on_new_table`` does not copy these.

    One that was made again under a name that the lake knows is not new: ``on_recreated_table`` is for it.

    :raises TableRefused: when there is a new one, and the policy is to fail.
    """
    seen = None if checkpoint is None else checkpoint.tables
    if request.on_new_table == COPY or seen is None:
        return tuple(published)
    known = {*seen.values(), *request.copy_tables}
    new = {
        each.name for each in published if each.relation_oid not in seen and each.name not in known
    }
    if new and request.on_new_table == FAIL:
        raise TableRefused(
            "The table is published, and the lake does not have it.",
            slot=request.slot_name,
            table=min(new),
            advice="name it in copy_tables, which copies it in this run, or take it out of the publication; "
            "on_new_table='copy' copies whatever is published, 'ignore' leaves out what is new.",
        )
    if new:
        log.warning(
            "Published and not in the lake, so left out until copy_tables names them: %s",
            ", ".join(sorted(new)),
        )
    return tuple(each for each in published if each.name not in new)


def tables_to_copy(
    published: Sequence[PublishedTable],
    checkpoint: Checkpoint | None,
    request: CaptureRequest,
    gaps: frozenset[int] = frozenset(),
) -> tuple[PublishedTable, ...]:
    """The published tables that this run copies: those asked for, and those that the lake never saw.

    Without a checkpoint the lake is empty or was loaded from outside: those asked for.

    A table that was dropped and made again has a name that the lake knows under another OID. The copy would
    replace what the lake holds of the table before, so it is made only when the request says so.

    :param gaps: OIDs of tables that were not published all the time.
    :raises ConfigurationError: when a table that was asked for is not published.
    :raises TableRefused: when a table was dropped and made again, or is new, and the policy is to fail.
    """
    names = {each.name for each in published}
    if missing := sorted(set(request.copy_tables) - names):
        raise ConfigurationError(
            f"copy_tables names tables that are not published: {', '.join(missing)}.",
            slot=request.slot_name,
            advice="write them as schema.table, and add them to a publication that is read.",
        )
    published = without_ignored(published, checkpoint, request)
    tables = None if checkpoint is None else checkpoint.tables
    unasked = request.initial_copy == ALWAYS and tables is not None
    seen = tables or {}
    known = set(seen.values())
    recreated = [
        each
        for each in published
        if each.relation_oid not in seen
        and each.name in known
        and each.name not in request.copy_tables
    ]
    renamed = _replaced(published, seen)
    if recreated and request.on_recreated_table == FAIL:
        former = next((new for old, new in renamed.items() if old == recreated[0].name), None)
        raise TableRefused(
            "The table was dropped and created again, and the lake holds the rows of the former one."
            if former is None
            else f"The table was renamed to {former}, and another made under its name that the lake has not.",
            slot=request.slot_name,
            table=recreated[0].name,
            advice="name it in copy_tables, which replaces them in this run; on_recreated_table='copy' does "
            "so whenever it happens.",
        )
    wanted = {*request.copy_tables, *(each.name for each in recreated)}
    # The copy takes the place of what the lake has of a table that is called otherwise now.
    wanted |= {now for name, now in renamed.items() if name in wanted}
    copied = tuple(
        each
        for each in published
        if each.name in wanted
        or (unasked and (each.relation_oid not in seen or each.relation_oid in gaps))
    )
    for each in published:
        is_new = tables is not None and each.relation_oid not in seen and each in copied
        if each.relation_oid in gaps and not is_new:
            log.warning(
                "%s was not published all the time since the last batch, or with fewer rows or columns than"
                " now: what was written to it meanwhile is not in the stream. %s",
                each.name,
                "It is copied again." if each in copied else "Name it in copy_tables.",
            )
    return copied


def changes_of_membership(
    session: Session, before: PublishedSet, now: PublishedSet, *, slot_name: str
) -> frozenset[int]:
    """Compare two states of the publications; say in warnings what the stream cannot carry.

    :returns: OIDs of the tables that were not published all the time in between, or not with all rows that
        are now.
    :raises PublicationChanged: when partitions are published under other names than before.
    """
    refuse_other_root(before, now, slot_name=slot_name)
    earlier = {each.oid: each for each in before.publications}
    gaps = set(_newly_generated(session, before, now))
    for publication in now.publications:
        was = earlier.get(publication.oid)
        # One that was made again has all of its tables copied, so it needs no warning.
        if was is not None and was.written_by != publication.written_by:
            log.warning(
                "Publication %s was altered: operations that it did not publish for a while are not in the"
                " stream.",
                publication.name,
            )
    known = {each.relation_oid: each for each in before.tables}
    for table in now.tables:
        was_table = known.get(table.relation_oid)
        if was_table is None or _has_gap(was_table, table):
            gaps.add(table.relation_oid)
        if was_table is not None:
            _warn_of_partitions(session, was_table, table)
    return frozenset(gaps)


def _newly_generated(session: Session, before: PublishedSet, now: PublishedSet) -> frozenset[int]:
    """Tables of which stored generated columns are published since: no older row was sent with them."""
    earlier = {each.oid: each.generated_columns for each in before.publications}
    if not any(
        each.generated_columns and earlier.get(each.oid) is False for each in now.publications
    ):
        return frozenset()
    return with_generated_columns(session, [each.relation_oid for each in now.tables])


def refuse_other_names(
    session: Session,
    marks: tuple[PublishedSet, PublishedSet],
    *,
    sent: Sequence[int],
    copied: Collection[int],
    slot_name: str,
) -> None:
    """Refuse rows of partitions that came under another table's name than they are published by.

    ``publish_via_partition_root`` may have been another for a while, though it is the same before and after.

    :param marks: what was published when the batch before was begun, and now.
    :param sent: OIDs of the tables that sent rows, whether these are in the batch or were left out.
    :param copied: OIDs of the tables that are copied in it: they lack nothing.
    :raises PublicationChanged: names the table whose rows they are.
    """
    before, now = marks
    published = {each.relation_oid: each.name for each in now.tables}
    known = published.keys() | {each.relation_oid for each in before.tables}
    strangers = sorted(set(sent) - known)
    if not strangers:
        return
    roots = {
        int(mark.split(" ", maxsplit=1)[0]): each.relation_oid
        for each in before.tables
        for mark in each.partitions
    }
    wanted = {roots[oid] for oid in strangers if oid in roots} & published.keys()
    for partitions in partitions_below(session, list(published), strangers).values():
        wanted |= partitions
    if lacking := sorted(published[oid] for oid in wanted - set(copied)):
        raise PublicationChanged(
            "publish_via_partition_root was another for a while since the last batch: rows of partitions came"
            " under another table's name.",
            slot=slot_name,
            table=lacking[0],
            advice=f"name {', '.join(lacking)} in copy_tables once; a table that the lake gets under the "
            "other name can be dropped.",
        )


def _has_gap(before: TableMark, now: TableMark) -> bool:
    """Whether something that is published now was not, or not for all rows, at some time since."""
    kept = set(before.memberships) & set(now.memberships)
    if not kept:
        return True
    out_before, out_now = dict(before.leaves_out), dict(now.leaves_out)
    # Those that stay and have no filter carry all of their operations, whatever comes or goes beside.
    carried = {
        operation
        for each in kept
        if not each.endswith(FILTERED)
        for operation in _OPERATIONS - {*out_before.get(each, ""), *out_now.get(each, "")}
    }
    added = set(now.memberships) - kept
    return any(not carried.issuperset(_OPERATIONS - set(out_now.get(each, ""))) for each in added)


def refuse_other_root(before: PublishedSet, now: PublishedSet, *, slot_name: str) -> None:
    """Refuse partitions that are published under other names than before.

    :raises PublicationChanged: names the publication.
    """
    by_oid = {each.oid: each for each in before.publications}
    by_name = {each.name: each for each in before.publications}
    for publication in now.publications:
        # One that was dropped and made again is the same one to whoever reads it, with another OID.
        was = by_oid.get(publication.oid) or by_name.get(publication.name)
        if was is not None and was.via_partition_root != publication.via_partition_root:
            value = str(publication.via_partition_root).lower()
            former = str(was.via_partition_root).lower()
            raise PublicationChanged(
                f"publish_via_partition_root of publication {publication.name} was {former} and is {value} "
                "now, which gives the rows of partitioned tables another table in the lake.",
                slot=slot_name,
                advice=f"set it to {former} again and name the partitioned tables in copy_tables once; or"
                " read the publication with a new slot into another namespace.",
            )


def _replaced(published: Sequence[PublishedTable], seen: Mapping[int, str]) -> dict[str, str]:
    """Tables that were renamed while another took their name: the name in the lake, and that of now."""
    names = {each.name: each.relation_oid for each in published}
    return {
        seen[each.relation_oid]: each.name
        for each in published
        if each.relation_oid in seen
        and seen[each.relation_oid] != each.name
        and names.get(seen[each.relation_oid], each.relation_oid) != each.relation_oid
    }


def _warn_of_partitions(session: Session, before: TableMark, now: TableMark) -> None:
    came = sorted(set(now.partitions) - set(before.partitions))
    if came and (attached := attached_partitions(session, came)):
        log.warning(
            "%s got partitions that were tables of their own: %s. Rows that they brought are not in the"
            " stream: name the table in copy_tables if there were any.",
            now.name,
            ", ".join(attached),
        )
    if gone := len(set(before.partitions) - set(now.partitions)):
        log.warning(
            "%d partitions of %s were detached or dropped. PostgreSQL sends no deletes for that: their rows"
            " stay in the lake until the table is copied again.",
            gone,
            now.name,
        )


def begins_a_lake(sealed: Manifest, request: CaptureRequest) -> bool:
    """Whether a batch that waits may be the first of a lake, which has nothing to change yet.

    One that was staged for another lake, or for this one before it was emptied, has changes of tables of
    which it holds no copy.
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


def holds_copies(sealed: Manifest, copy_tables: Sequence[str]) -> bool:
    """Whether a batch that waits to be applied holds the copies that are asked for.

    One without them may be the very batch that cannot be applied before a table is copied again.
    """
    copied = {table.name for table in sealed.tables if table.copy_lsn is not None}
    if missing := sorted(set(copy_tables) - copied):
        log.info("The sealed batch lacks the copy of %s.", ", ".join(missing))
    return not missing
