"""Which settings every session of ours has, whatever role, database, environment and connection say.

What is not here: opening sessions (``session.py``; the trigger opens its own, which must not block).

Source: https://www.postgresql.org/docs/current/runtime-config-client.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Settings that alter the text of values, or could end or filter a read.
PINNED = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "search_path": "pg_catalog",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


def startup_options(own: str | None, changed: Mapping[str, str] | None = None) -> str:
    """The parameter ``options`` of libpq that pins the settings; of two values the server takes the last.

    :param own: the connection's own ``options``; what they say of a pinned setting does not count.
    :param changed: settings that this session has in another value than the others.

    Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-OPTIONS
    """
    pinned = " ".join(
        f"-c {name}={value}" for name, value in (PINNED | dict(changed or {})).items()
    )
    return f"{own} {pinned}" if own else pinned
