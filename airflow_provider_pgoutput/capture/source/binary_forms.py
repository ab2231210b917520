"""The check, before a read in binary mode, that all published columns can be read in it.

What is not here: columns that are in the stream and not in the catalog of now; see ``binary_caster``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.cast import TEXT_MODE_ADVICE, can_be_sent
from airflow_provider_pgoutput.capture.types.names import type_name
from airflow_provider_pgoutput.errors import NoBinaryForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo


def check_binary_forms(
    tables: Iterable[PublishedTable], types: Mapping[int, TypeInfo], *, two_phase: bool = False
) -> None:
    """Refuse tables with columns that binary mode cannot read.

    :param types: users' types by OID.
    :param two_phase: what is prepared waits as it came, and the server does not send it again: what a user's
        type looked like has to be known for that long, and it may be dropped or altered meanwhile.
    :raises NoBinaryForm: names each such column and its type.
    """
    readable = {} if two_phase else types
    refused = [
        f"{table.name}.{column.name} ({type_name(column.type_oid, column.type_modifier, types)})"
        for table in tables
        for column in table.columns
        if not can_be_sent(column.type_oid, readable)
    ]
    if refused:
        beside = " beside two_phase" if two_phase else ""
        raise NoBinaryForm(
            f"{len(refused)} published column(s) cannot be read in binary mode{beside}: "
            f"{', '.join(refused)}.",
            advice=TEXT_MODE_ADVICE,
        )
