"""What a refusal of the server means to the owner of the DAG: one table from SQLSTATE to error class.

A message keeps the server's own words if they name objects, but not if they could quote a value (class 22) or
a connection string. The error's class says what to do next.

Source: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import adbc_driver_manager
import psycopg

from airflow_provider_pgoutput import errors
from airflow_provider_pgoutput.capture.source.pinned import refuses_startup

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Meaning(NamedTuple):
    #: The beginning of the SQLSTATE, and a pattern of the server's message, or nothing. Messages quote names,
    #: and a name may be any word. So a short pattern says where its words stand.
    sqlstate: str
    pattern: str
    error: type[errors.PgoutputError]
    advice: str


_COPY_AGAIN = (
    "run once with on_slot_lost='copy', which makes a new slot and copies the tables again."
)
_REPLICATION = (
    "ALTER ROLE <role> REPLICATION; on a managed service the role that it has for that, such as "
    "GRANT rds_replication TO <role>."
)
#: For a change in the stream. The current catalog was looked at before, and it has the publication.
_MADE_LATE = (
    "create the publication if it was dropped just now. If it was made, or made again, after that change,"
    " no run can decode it: drop the slot and run once with on_slot_lost='copy', which makes a new one and"
    " copies the tables again. The slot was not moved."
)
_CONNECT = "check host, database, user, password, TLS and pg_hba.conf."
_VERIFY = (
    "let sslrootcert in the connection's extras name the certificate of the authority that signed the "
    "server's (of a public one: the machine's bundle), and host the server by the name in its certificate; a "
    "lower sslmode has to be given there by name."
)
#: For what works through a pooler except for one part, such as a copy.
DIRECT_CONNECTION = (
    'Or name a connection that does so in the extras of this one: {"direct_conn_id": "..."}.'
)


def past_pooler(where: str = "mostly port 5432") -> str:
    """The advice to connect without a connection pooler.

    :param where: the server's address.
    """
    return f"connect to the server itself, past the pooler ({where})."


_DIRECT = f"{past_pooler()} {DIRECT_CONNECTION}"
_LATER = "nothing; the next attempt connects again."
#: A server fails so if a transaction changed the catalog and its rows are decoded before it ended.
_BEFORE_ITS_END = "set streaming to off; with two_phase, use a new slot without it."

_AS_TEXT = "use text mode (binary=False)."

_NO_ROOM = (
    "set transport to 'auto' or 'walsender', which needs no such files; or let the server have more room "
    "(temp_file_limit, temp_tablespaces)."
)

#: How the server names an exported snapshot, in any language.
_SNAPSHOT_NAME = "[0-9A-F]{8}-[0-9A-F]{8}-[0-9]+"
#: About an exported snapshot, in the words of several versions.
_NEW_SNAPSHOT = "nothing; the tables that were not copied yet are copied in a new snapshot."

#: The first line that matches counts.
_MEANINGS = (
    _Meaning(
        "55006",
        "",
        errors.SlotBusy,
        "wait for the other reader to end, or end it; this package never terminates a backend.",
    ),
    _Meaning(
        "42710",
        "",
        errors.SlotBusy,
        "nothing; another run made the slot just now, and the next attempt goes on from it.",
    ),
    # Somebody dropped a published table while the server listed them.
    _Meaning("XX000", "^could not open relation with OID", errors.SourceUnavailable, _LATER),
    _Meaning("55P03", "", errors.SourceLocked, "see pg_locks and pg_prepared_xacts."),
    _Meaning("55000", "can no longer", errors.SlotLost, _COPY_AGAIN),
    _Meaning("55000", "has been invalidated", errors.SlotLost, _COPY_AGAIN),
    # A segment of WAL, or a file of the slot. The file of a table may be missing as well.
    _Meaning("58P01", "[0-9A-F]{24}|pg_replslot/|pg_logical/", errors.SlotLost, _COPY_AGAIN),
    _Meaning(
        "55000", "not created in this database", errors.WrongSlot, "connect to the slot's database."
    ),
    _Meaning("55000", "physical replication slot", errors.WrongSlot, "name a logical slot."),
    _Meaning(
        "55000",
        "cannot use replication slot",
        errors.WrongSlot,
        "read the slot on the primary; a synchronised slot serves only after a promotion.",
    ),
    _Meaning("55000", "wal_level", errors.ConfigurationError, "set wal_level = logical; restart."),
    _Meaning(
        "42704",
        r"^publication \"",
        errors.PublicationMissing,
        _MADE_LATE,
    ),
    _Meaning(
        "42704", r"^replication slot \"", errors.SlotNotFound, "check slot_name and the connection."
    ),
    _Meaning("42501", "to use replication slots$", errors.MissingPrivilege, _REPLICATION),
    _Meaning(
        "42501",
        "^permission denied for schema ",
        errors.MissingPrivilege,
        "GRANT USAGE ON SCHEMA <that schema> TO <role>; a copy needs it.",
    ),
    # With old_snapshot_threshold, which version 17 no longer has.
    _Meaning("72000", "", errors.SnapshotLost, _NEW_SNAPSHOT),
    _Meaning("22023", "^invalid snapshot identifier", errors.SnapshotLost, _NEW_SNAPSHOT),
    _Meaning("42704", _SNAPSHOT_NAME, errors.SnapshotLost, _NEW_SNAPSHOT),
    _Meaning(
        "55000", "^could not import the requested snapshot", errors.SnapshotLost, _NEW_SNAPSHOT
    ),
    _Meaning(
        "42501",
        "^permission denied for table ",
        errors.MissingPrivilege,
        "GRANT SELECT ON <that table> TO <role>; or, for all tables, GRANT pg_read_all_data TO <role>.",
    ),
    _Meaning(
        "42501",
        "^query would be affected by row-level security",
        errors.MissingPrivilege,
        "ALTER ROLE <role> BYPASSRLS; else the copy would leave rows out.",
    ),
    _Meaning(
        "42501",
        "^permission denied for function ",
        errors.MissingPrivilege,
        "GRANT EXECUTE ON FUNCTION <it>.",
    ),
    # A list of the server for all roles. The SQLSTATE is that of a missing right, but no GRANT helps.
    _Meaning(
        "42501",
        "may not be used as an output plugin$",
        errors.ConfigurationError,
        "add pgoutput to the server's setting output_plugin_libraries and reload its configuration.",
    ),
    _Meaning("42501", "", errors.MissingPrivilege, "GRANT what the message names to the role."),
    _Meaning("22023", "proto_version", errors.WrongSlot, "use a slot of the plugin pgoutput."),
    _Meaning(
        "0A000",
        "column lists",
        errors.ConfigurationError,
        "give both the same column list; what was written before that can be read under one of them only:"
        " leave the other out of publication_names for one run.",
    ),
    _Meaning("42602", "", errors.ConfigurationError, "check publication_names."),
    _Meaning("28", "", errors.ConfigurationError, "check user, password, TLS and pg_hba.conf."),
    _Meaning("3D000", "", errors.ConfigurationError, "check the database of the connection."),
    _Meaning("53400", "temp_file_limit", errors.TemporaryFilesFull, _NO_ROOM),
    # The next attempt would fill the source's disk again.
    _Meaning("53100", "pgsql_tmp", errors.TemporaryFilesFull, _NO_ROOM),
    _Meaning(
        "53400", "", errors.ConfigurationError, "raise max_replication_slots or max_wal_senders."
    ),
    # "could not map filenumber ...", before version 16 "filenode".
    _Meaning("XX000", "to relation OID", errors.DecodedTooEarly, _BEFORE_ITS_END),
    _Meaning("XX000", "pg_attribute catalog is missing", errors.DecodedTooEarly, _BEFORE_ITS_END),
    _Meaning(
        "42883", "^no binary output function available for type ", errors.NoBinaryForm, _AS_TEXT
    ),
    _Meaning("08P01", "statement pooling mode", errors.ConfigurationError, _DIRECT),
    _Meaning("08", "", errors.SourceUnavailable, _LATER),
    _Meaning("53", "", errors.SourceUnavailable, _LATER),
    _Meaning("57", "", errors.SourceUnavailable, _LATER),
    _Meaning("40", "", errors.SourceUnavailable, _LATER),
    _Meaning("25P", "", errors.SourceUnavailable, _LATER),
)
#: For a statement that reads a user's table. It says nothing about the slot. The table's schema, the table or
#: a column may be gone or renamed, or the column may have another type by now, for which there is no such
#: function (``numeric_send`` of a text).
_OF_A_TABLE = (
    *(each for each in _MEANINGS if each.error is not errors.SlotLost),
    *(
        _Meaning(each, "", errors.SnapshotLost, _NEW_SNAPSHOT)
        for each in ("3F000", "42P01", "42703", "42883")
    ),
)

_REPLICATION_NEEDED = ("permission denied to start WAL sender", "replication role")

#: Words for what passes: an encrypted connection breaks, or a server has no room or is not there yet. With
#: ``sslmode=prefer`` libpq then tries again without TLS, and the result of that follows these words.
_PASSING = (
    "too many clients",
    "remaining connection slots",
    "too many connections for",
    "is starting up",
    "is shutting down",
    "is not yet accepting connections",
    "SSL SYSCALL error",
    "SSL connection has been closed",
    "unexpected eof",
    "bad record mac",
)

#: Words of libpq for what waiting cannot mend. libpq gives no SQLSTATE when a connection fails.
_REFUSED = (
    "authentication failed",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "does not exist",
    "certificate",
    "SSL",
)


#: Quoted names of hosts, databases and roles in a message. They may be any word.
_QUOTED = re.compile(r"\"[^\"]*\"|'[^' ]*'")


def meaning(
    sqlstate: str | None,
    message: str,
    *,
    slot: str | None = None,
    table: str | None = None,
) -> errors.PgoutputError:
    """Make our error for what the server said.

    :param sqlstate: five characters; None: libpq gave none.
    :param message: the primary message of the server, or what libpq printed.
    """
    # What libpq prints has several lines. A line of a log has one.
    message = " ".join(message.split())
    if not sqlstate:
        return _of_connecting(message, slot)
    for each in _MEANINGS if table is None else _OF_A_TABLE:
        if sqlstate.startswith(each.sqlstate) and re.search(each.pattern, message):
            return each.error(
                f"{message} [SQLSTATE {sqlstate}]", slot=slot, table=table, advice=each.advice
            )
    # Class 22 is about values, and its messages quote them.
    said = "the statement met a value it refused" if sqlstate.startswith("22") else message
    return errors.SourceError(
        f"The source refused a statement: {said} [SQLSTATE {sqlstate}]",
        slot=slot,
        table=table,
        advice="see the server's log at this time for the whole message.",
    )


def _of_connecting(message: str, slot: str | None) -> errors.PgoutputError:
    """Our error for what libpq says when a connection fails. It has no SQLSTATE then."""
    if any(words in message for words in _REPLICATION_NEEDED):
        return errors.MissingPrivilege(
            "The role may not start a walsender, which creating a slot with a snapshot needs.",
            slot=slot,
            advice=_REPLICATION,
        )
    if "permission denied for database" in message:
        return errors.MissingPrivilege(
            "The role may not connect to the database.",
            slot=slot,
            advice="GRANT CONNECT ON DATABASE <it> TO <role>.",
        )
    if refuses_startup(message):
        return errors.ConfigurationError(
            f"A connection pooler refused the connection: {message}", slot=slot, advice=_DIRECT
        )
    said = _QUOTED.sub("", message)
    passing = any(words in said for words in _PASSING)
    if not passing and any(words in said for words in _REFUSED):
        return errors.ConfigurationError(
            f"The source refused the connection: {message}",
            slot=slot,
            advice=_VERIFY if re.search("certificate|SSL", said) else _CONNECT,
        )
    return errors.SourceUnavailable(
        f"The source did not answer: {message}", slot=slot, advice=_LATER
    )


def of_psycopg(
    error: psycopg.Error, *, slot: str | None = None, table: str | None = None
) -> errors.PgoutputError:
    """Our error for one of psycopg's."""
    if error.sqlstate is None and isinstance(error, psycopg.ProgrammingError):
        # A connection string that cannot be parsed. Its text may contain the password.
        return errors.ConfigurationError(
            "The connection parameters cannot be understood.",
            slot=slot,
            advice="check the connection; values with blanks need quotes in a conninfo string.",
        )
    return meaning(error.sqlstate, error.diag.message_primary or str(error), slot=slot, table=table)


def of_adbc(
    error: adbc_driver_manager.Error, *, slot: str | None = None, table: str | None = None
) -> errors.PgoutputError:
    """Our error for one of ADBC's. ADBC's text also has the statement, which is left out."""
    text = str(error).split("\n\nQuery was:", maxsplit=1)[0]
    for name, value in error.details or ():
        # Names come as bytes, too, whatever the annotation says.
        if "PG_DIAG_MESSAGE_PRIMARY" in str(name):
            text = value.decode("utf-8", "replace")
    return meaning(error.sqlstate or None, text, slot=slot, table=table)


def skipped_publication(
    notice: psycopg.errors.Diagnostic, *, slot: str | None = None
) -> errors.PublicationMissing | None:
    """The error for the notice of version 18 and later that changes of a missing publication are left out.

    Before, that was an error. The words are in the server's language (``lc_messages``), but not the SQLSTATE.
    """
    if (notice.severity_nonlocalized, notice.sqlstate) != ("WARNING", "55000"):
        return None
    return errors.PublicationMissing(
        f"The server left changes out: {notice.message_primary} [SQLSTATE 55000]",
        slot=slot,
        advice=_MADE_LATE,
    )


@contextmanager
def translated(slot: str | None = None, table: str | None = None) -> Iterator[None]:
    """Turn errors of psycopg or ADBC inside into our errors, without the original's details.

    The original is suppressed on purpose: its DETAIL and CONTEXT lines may quote rows.
    """
    try:
        yield
    except psycopg.Error as error:
        raise of_psycopg(error, slot=slot, table=table) from None
    except adbc_driver_manager.Error as error:
        raise of_adbc(error, slot=slot, table=table) from None


@contextmanager
def of_slot(slot: str) -> Iterator[None]:
    """Add the slot to the error of a connection that fails inside.

    :raises SourceUnavailable: the same error, with the slot.
    """
    try:
        yield
    except errors.SourceUnavailable as error:
        if error.slot is not None:
            raise
        raise errors.SourceUnavailable(
            error.message, slot=slot, table=error.table, lsn=error.lsn, advice=error.advice
        ) from error.__cause__
