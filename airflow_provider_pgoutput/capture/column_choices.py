"""Checks, before and after a read, that the columns' types have the choices that the user made for them.

``types/options.py`` checks the words of the choices before anything is connected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.mapping import kinds_in
from airflow_provider_pgoutput.capture.types.names import type_name
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn, PublishedTable
    from airflow_provider_pgoutput.capture.types.options import TypeOptions
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.errors import PgoutputError

log = logging.getLogger(__name__)


def check_column_types(
    tables: Sequence[PublishedTable],
    types: Mapping[int, TypeInfo],
    options: TypeOptions,
    *,
    is_first: bool,
    refused: dict[int, PgoutputError] | None = None,
) -> None:
    """Refuse a choice that a column's type does not have.

    :param types: users' types by OID.
    :param refused: collects the errors of such tables, by OID; None: the first one is raised.
    :param is_first: whether the lake has nothing of the slot yet. Then a name that is no published column is
        an error, because a typing mistake would fix the column's type for good. Later it is a warning,
        because the column may have been dropped.
    :raises ConfigurationError: it names the column.
    """
    names = {f"{table.name}.{column.name}" for table in tables for column in table.columns}
    if unknown := sorted(set(options.by_column) - names):
        _say(
            f"column_types names no published column: {', '.join(unknown)}.",
            "spell it schema.table.column.",
            is_first=is_first,
        )
    for table in tables:
        try:
            for column in table.columns:
                _check(table, column, types, options)
        except ConfigurationError as error:
            if refused is None:
                raise
            refused[table.relation_oid] = error


def check_key_columns(
    tables: Sequence[PublishedTable], configured: Mapping[str, Sequence[str]], *, is_first: bool
) -> None:
    """Refuse a key of a table that is not published. Its columns are checked with the table.

    :param is_first: see ``check_column_types``.
    :raises ConfigurationError: it names the table.
    """
    if unknown := sorted(configured.keys() - {table.name for table in tables}):
        _say(
            f"key_columns names no published table: {', '.join(unknown)}.",
            "spell it schema.table.",
            is_first=is_first,
        )


def _say(message: str, advice: str, *, is_first: bool) -> None:
    if is_first:
        raise ConfigurationError(message, advice=advice)
    log.warning("%s", message)


def _check(
    table: PublishedTable,
    column: PublishedColumn,
    types: Mapping[int, TypeInfo],
    options: TypeOptions,
) -> None:
    wanted = options.of(table.name, column.name).own_kinds
    if wanted and wanted.isdisjoint(kinds_in(column.type_oid, types)):
        chosen = options.by_column[f"{table.name}.{column.name}"]
        raise ConfigurationError(
            f"column_types says {chosen!r}, which is for {' and '.join(sorted(wanted))}; the column is "
            f"{type_name(column.type_oid, column.type_modifier, types)}.",
            table=table.name,
            column=column.name,
            advice="choose 'string', or leave the column out of column_types.",
        )
