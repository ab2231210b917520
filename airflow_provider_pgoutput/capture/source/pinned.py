"""Settings that every session of ours has, whatever role, database, environment and connection say.

``session.py`` opens the sessions. The trigger opens its own, because it must not block.

Source: https://www.postgresql.org/docs/current/runtime-config-client.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


#: Parameters of libpq. Those of the connection win.
DEFAULTS: Final = {
    #: Seconds for each address of the host.
    "connect_timeout": "30",
    #: Seconds of silence, seconds between probes, and probes without an answer.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    #: How many milliseconds our data may stay unacknowledged. No probes are sent meanwhile, and the kernel
    #: alone would try for a quarter of an hour.
    "tcp_user_timeout": "90000",
}


#: Words of PgBouncer and of RDS Proxy for a parameter that they do not take when a connection starts, such as
#: ``options`` or ``replication``. libpq has no SQLSTATE when a connection fails. RDS Proxy goes on with a
#: typographic apostrophe: "RDS Proxy currently doesn’t support command-line options."
_REFUSES_STARTUP: Final = ("unsupported startup parameter", "RDS Proxy currently doesn")


#: How often the server checks whether its client is still there while it works on an answer. Otherwise it
#: would finish the answer for a reader that was killed, and keep the slot busy until then.
CLIENT_CHECK_INTERVAL: Final = "2s"


#: Settings that change the text of values or the meaning of our statements, or could end or filter a read.
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
    # It quotes names in the text of values (regclass), and ADBC looks up functions by such a text.
    "quote_all_identifiers": "off",
    # How literals are read: ours, and those in row filters that the server printed.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "off",
    # We need one warning: version 18 leaves out a publication that it does not find.
    "client_min_messages": "warning",
    # A standby refuses serializable transactions. A deferrable one waits for all others.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "exit_on_error": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


def refuses_startup(text: str) -> bool:
    """Whether a pooler did not take a parameter that we gave at the start of a connection.

    :param text: of an error.
    """
    return any(words in text for words in _REFUSES_STARTUP)


def startup_options(own: str | None, changed: Mapping[str, str | None] | None = None) -> str:
    """The parameter ``options`` of libpq that pins the settings. Of two values the server takes the last.

    :param own: the connection's own ``options``. Their values for pinned settings do not count.
    :param changed: settings with another value in this session; None: the server's own value.

    Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-OPTIONS
    """
    wanted = PINNED | dict(changed or {})
    given = [(name, value) for name, value in wanted.items() if value is not None]
    # A blank would end the option.
    escaped = ((name, value.replace(" ", "\\ ")) for name, value in given)
    pinned = " ".join(f"-c {name}={value}" for name, value in escaped)
    return f"{own} {pinned}" if own else pinned
