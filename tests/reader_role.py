"""The role of every pipeline under test: that of docs/how-to/postgresql.md, never a superuser.

The statements are taken from that page, so what it tells operators to run is what is tested. What is not
here: roles that lack something (``capture/source/test_rights.py``).
"""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "postgresql.md"
#: As the page calls them, and what they are in a test.
ROLE = "cdc"
_PASSWORD_OF_THE_PAGE = "'...'"
_PASSWORD = "reader-of-the-tests"


def statements(heading: str) -> str:
    """The SQL that the page gives first below a heading."""
    found = re.search(
        rf"^#+ {re.escape(heading)}$.*?^```sql\n(.*?)^```$", PAGE.read_text(), re.S | re.M
    )
    assert found, heading
    return found[1]


def role_statements(heading: str, role: str, password: str) -> str:
    """The SQL below a heading for a role of another name."""
    found = re.sub(rf"\b{ROLE}\b", role, statements(heading))
    return found.replace(_PASSWORD_OF_THE_PAGE, f"'{password}'")


@functools.cache
def reader_conninfo(conninfo: str) -> str:
    """The same database as the documented role, which is made on first use.

    :param conninfo: of a superuser.
    """
    with psycopg.connect(conninfo, autocommit=True) as session:
        if not session.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone():
            for heading in ("The role", "All tables"):
                session.execute(role_statements(heading, ROLE, _PASSWORD).encode())
    # Keeps the parameters that a test added.
    return make_conninfo("", **{**conninfo_to_dict(conninfo), "user": ROLE, "password": _PASSWORD})


@contextlib.contextmanager
def role_with_short_timeouts(conninfo: str, milliseconds: int) -> Iterator[None]:
    """Let each of the server's timeouts end what new sessions of the role do, after so long.

    :param conninfo: of a superuser.
    """
    with psycopg.connect(conninfo, autocommit=True) as session:
        names = session.execute(
            "SELECT name FROM pg_settings WHERE context = 'user' AND name IN ('statement_timeout',"
            " 'lock_timeout', 'transaction_timeout', 'idle_session_timeout',"
            " 'idle_in_transaction_session_timeout')"
        ).fetchall()
        # Version 17 brought transaction_timeout.
        assert len(names) == (5 if session.info.server_version >= 170_000 else 4)
        try:
            for (name,) in names:
                session.execute(f"ALTER ROLE {ROLE} SET {name} = {milliseconds}".encode())
            yield
        finally:
            session.execute(f"ALTER ROLE {ROLE} RESET ALL".encode())
