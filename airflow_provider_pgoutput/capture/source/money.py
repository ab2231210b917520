"""Warns if amounts of money look smaller or larger in the lake than in other sessions of the source.

The server stores the number of smallest units (cents). ``lc_monetary`` says how many make one whole unit. Our
sessions pin it to C, which has two decimals, so that no setting changes what is staged (``pinned.py``).

Source: https://www.postgresql.org/docs/current/datatype-money.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.types.type_info import find_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

log = logging.getLogger(__name__)

_MONEY_OID = 790
#: The name of the session's locale, and how many smallest units it has in one whole unit.
_UNITS_QUERY = """
SELECT pg_catalog.current_setting('lc_monetary'),
       pg_catalog.encode(pg_catalog.cash_send('1'::pg_catalog.money), 'hex')
"""
_UNITS_OF_C = 100


def warn_of_other_decimals(
    conninfo: str | Mapping[str, Any],
    tables: Iterable[PublishedTable],
    types: Mapping[int, TypeInfo],
    *,
    slot_name: str,
) -> None:
    """Name in a warning the columns of money that other sessions of this role show differently.

    :param types: users' types by OID.
    """
    used = {column.type_oid for table in tables for column in table.columns}
    of_money = {oid for oid in used if _is_made_of_money(oid, types)}
    named = [
        f"{table.name}.{column.name}"
        for table in tables
        for column in table.columns
        if column.type_oid in of_money
    ]
    if not named:
        return
    locale, units = _read_units(conninfo, slot_name)
    if units != _UNITS_OF_C:
        log.warning(
            "Slot %s: the server's lc_monetary is %s, whose currency has %s smallest units to one, and %s"
            " are staged as with lc_monetary C, which has 100: 1 is shown as $%.2f.",
            slot_name,
            locale,
            f"{units:,}",
            ", ".join(named),
            units / _UNITS_OF_C,
        )


def _is_made_of_money(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    info = find_type(type_oid, types)
    if info is None or info.oid == _MONEY_OID:
        return info is not None
    inner = (info.base_oid, info.element_oid, info.part_oid)
    attributes = (each.type_oid for each in info.attributes)
    return any(_is_made_of_money(each, types) for each in (*inner, *attributes) if each)


def _read_units(conninfo: str | Mapping[str, Any], slot_name: str) -> tuple[str, int]:
    """Ask a session that has the server's own ``lc_monetary``. A pinned setting cannot be unpinned."""
    with (
        translated(slot=slot_name),
        sessions.open_pinned(
            conninfo,
            lambda given: psycopg.connect(**given, autocommit=True),
            changed={"lc_monetary": None},
        ) as session,
    ):
        row = session.execute(_UNITS_QUERY).fetchone()
    assert row is not None, "a query without a table has a row"
    return row[0], int(row[1], 16)
