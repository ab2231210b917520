"""The check, before a read in binary mode, that all published columns can be read in it.

What is not here: columns that are added while the slot is read; their caster refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.binary import TEXT_MODE_ADVICE, has_binary_form
from airflow_provider_pgoutput.capture.types.mapping import lake_type
from airflow_provider_pgoutput.capture.types.names import type_name
from airflow_provider_pgoutput.capture.types.options import STRING
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.types.options import TypeOptions
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo


def check_binary_forms(
    tables: Iterable[PublishedTable],
    types: Mapping[int, TypeInfo],
    options: TypeOptions | None = None,
) -> None:
    """Refuse tables with columns that binary mode cannot read.

    :param types: users' types by OID.
    :param options: what was chosen about types; values that are not text come to no text in this mode.
    :raises ConfigurationError: names each such column and its type.
    """
    refused = [
        f"{table.name}.{column.name} ({type_name(column.type_oid, column.type_modifier, types)})"
        for table in tables
        for column in table.columns
        if not has_binary_form(column.type_oid, types)
        or (
            options is not None
            and options.of(table.name, column.name).is_text
            and lake_type(column.type_oid, column.type_modifier, types) != STRING
        )
    ]
    if refused:
        raise ConfigurationError(
            f"{len(refused)} published column(s) cannot be read in binary mode: {', '.join(refused)}.",
            advice=TEXT_MODE_ADVICE,
        )
