"""The check, before a read in binary mode, that all published columns can be read in it.

What is not here: columns that are in the stream and not in the catalog of now; see ``binary_caster``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.binary import TEXT_MODE_ADVICE, can_be_sent
from airflow_provider_pgoutput.capture.types.names import type_name
from airflow_provider_pgoutput.errors import NoBinaryForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo


def check_binary_forms(tables: Iterable[PublishedTable], types: Mapping[int, TypeInfo]) -> None:
    """Refuse tables with columns that binary mode cannot read.

    :param types: users' types by OID.
    :raises NoBinaryForm: names each such column and its type.
    """
    refused = [
        f"{table.name}.{column.name} ({type_name(column.type_oid, column.type_modifier, types)})"
        for table in tables
        for column in table.columns
        if not can_be_sent(column.type_oid, types)
    ]
    if refused:
        raise NoBinaryForm(
            f"{len(refused)} published column(s) cannot be read in binary mode: {', '.join(refused)}.",
            advice=TEXT_MODE_ADVICE,
        )
