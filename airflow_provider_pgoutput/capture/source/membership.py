"""Tables that come and go: which are copied in a run, and when a publication was changed.

What was written to a table while no publication held it is not in the stream and cannot be known from
it. The catalog keeps no times, but each row of it names the transaction that wrote it, and the slot
holds back the oldest one that its position may need to see. What is not here: the copy.

Source: https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.checkpoint import Checkpoint
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Session

log = logging.getLogger(__name__)

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


def tables_to_copy(
    published: Sequence[PublishedTable], checkpoint: Checkpoint, request: CaptureRequest
) -> tuple[PublishedTable, ...]:
    """The published tables that this run copies: those asked for, and those that the lake never saw.

    A table that was dropped and made again has a name that the lake knows under another OID. It is not
    copied unasked, because the copy would replace what the lake holds of the table before.

    :raises ConfigurationError: when a table that was asked for is not published.
    """
    names = {each.name for each in published}
    if missing := sorted(set(request.copy_tables) - names):
        raise ConfigurationError(
            f"copy_tables names tables that are not published: {', '.join(missing)}.",
            slot=request.slot_name,
            advice="write them as schema.table, and add them to a publication that is read.",
        )
    unasked = request.initial_copy and checkpoint.tables is not None
    seen = checkpoint.tables or {}
    known = set(seen.values())
    return tuple(
        each
        for each in published
        if each.name in request.copy_tables
        or (unasked and each.relation_oid not in seen and each.name not in known)
    )


def holds_copies(sealed: Manifest, copy_tables: Sequence[str]) -> bool:
    """Whether a batch that waits to be applied holds the copies that are asked for.

    One without them may be the very batch that cannot be applied before a table is copied again.
    """
    copied = {table.name for table in sealed.tables if table.copy_lsn is not None}
    if missing := sorted(set(copy_tables) - copied):
        log.info("It lacks the copy of %s: a batch with it is staged instead.", ", ".join(missing))
    return not missing
