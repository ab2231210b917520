"""Checks that the publications existed during the whole batch. If one did not, the server only warns.

From version 18 on the server leaves out changes from a time when a publication did not exist, and says so in
a WARNING. psycopg passes warnings on, ADBC does not. So after a read through ADBC the catalog is asked
whether a publication is younger than the slot's horizon. That is rare. Only then the server decodes the range
once more, returns a count, and its warnings are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.source.errors import skipped_publication, translated
from airflow_provider_pgoutput.capture.source.publications import changed_since_slot
from airflow_provider_pgoutput.capture.stream.options import publication_list

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.errors import PublicationMissing


def check_publications_throughout(
    session: Session, slot_name: str, publication_names: tuple[str, ...], end: Lsn
) -> None:
    """Refuse a batch during which a publication did not exist.

    :param end: where the batch ends, as the server counts.
    :raises PublicationMissing: the server left out changes.
    """
    found: list[PublicationMissing] = []

    def listen(notice: psycopg.errors.Diagnostic) -> None:
        if (missing := skipped_publication(notice, slot=slot_name)) is not None:
            found.append(missing)

    session.add_notice_handler(listen)
    try:
        with translated(slot=slot_name):
            # A publication's row is new after CREATE and after some forms of ALTER. An older row was
            # committed before everything that the slot still decodes. A frozen xmin may look new, although it
            # is old. Then the range is decoded once more in vain.
            changed = changed_since_slot(session, slot_name, publication_names)
            if any(table is None for _, table in changed):
                session.execute(
                    "SELECT pg_catalog.count(*) FROM pg_catalog.pg_logical_slot_peek_binary_changes("
                    "%s, %s, NULL, 'proto_version', '1', 'publication_names', %s)",
                    (slot_name, str(end), publication_list(publication_names)),
                )
    finally:
        session.remove_notice_handler(listen)
    if found:
        raise found[0]
