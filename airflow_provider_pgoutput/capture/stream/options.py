"""The options of a read: first checked among themselves, then against the server.

``StreamOptions`` has what the user says; None: the server decides. ``PluginOptions`` goes into the statement
that starts a read.

Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

    from airflow_provider_pgoutput.capture.source.catalog import Server


SQL = "sql"


WALSENDER = "walsender"


#: The server's room for temporary files decides which of the two transports is taken, see ``choose.py``.
AUTO = "auto"


STREAMING_OFF: Final = "off"


STREAMING_ON: Final = "on"


STREAMING_PARALLEL: Final = "parallel"


_STREAMS: Final = (STREAMING_ON, STREAMING_PARALLEL)


ORIGIN_ANY: Final = "any"


ORIGIN_NONE: Final = "none"


_NEWEST_VERSION: Final = 4


#: The first server with each protocol version, as ``server_version_num``.
_SERVER_WITH: Final = {1: 100000, 2: 140000, 3: 150000, 4: 160000}


#: The protocol version that a value of ``streaming`` needs.
_VERSION_FOR: Final = {STREAMING_OFF: 1, STREAMING_ON: 2, STREAMING_PARALLEL: 4}


_VERSION_FOR_TWO_PHASE: Final = 3


#: The first server that filters by origin itself.
_SERVER_WITH_ORIGIN: Final = 160000


#: By major version: the first minor version that does not send ``COMMIT PREPARED`` alone for a transaction
#: that changed nothing. (15.18 and 16.14 do; 15.19, 16.15, 17.11 and 18.6 do not. 18.4 sends a Prepare before
#: it, unless the transaction was prepared before two_phase was switched on.)
_FIRST_WITH_EVERY_PREPARE: Final = {15: 19, 16: 15, 17: 11, 18: 6}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the user wants from the stream.

    :raises ConfigurationError: the options do not fit together, whatever the server.
    """

    #: 1 to 4; None: the highest that the server has.
    proto_version: int | None = None
    #: ``off``, ``on`` or ``parallel``; None: ``on`` if that loses nothing, see ``_may_stream``.
    streaming: str | None = None
    #: Whether prepared transactions are read at PREPARE TRANSACTION.
    two_phase: bool = False
    #: Whether values come in binary form.
    binary: bool = False
    #: Whether logical messages are staged.
    messages: bool = False
    #: Only logical messages with one of these prefixes are staged; empty: all. The server always sends all.
    message_prefixes: tuple[str, ...] = ()
    #: ``none``: only what was first written on this server; ``any``: also what it replicates.
    origin: str = ORIGIN_ANY

    def __post_init__(self) -> None:
        version = self.proto_version
        if version is not None and version not in _SERVER_WITH:
            raise ConfigurationError(
                f"Unknown proto_version {version!r}.",
                advice=f"use 1 to {_NEWEST_VERSION}, or none.",
            )
        if self.streaming is not None and self.streaming not in _VERSION_FOR:
            raise ConfigurationError(
                f"Unknown value {self.streaming!r} of streaming.",
                advice=f"use one of {', '.join(map(repr, _VERSION_FOR))}.",
            )
        if self.origin not in {ORIGIN_ANY, ORIGIN_NONE}:
            raise ConfigurationError(
                f"Unknown value {self.origin!r} of origin.",
                advice=f"use {ORIGIN_ANY!r} or {ORIGIN_NONE!r}.",
            )
        if self.message_prefixes and not self.messages:
            raise ConfigurationError(
                "message_prefixes is given, and messages is off.",
                advice="set messages, or leave message_prefixes out.",
            )
        if self.messages and self.streaming in _STREAMS:
            raise ConfigurationError(
                f"streaming {self.streaming!r} does not go with messages: of a streamed message the server "
                "does not say in which subtransaction it was, and that may have been rolled back.",
                advice="leave streaming out.",
            )
        if version is not None and version < self._needed:
            raise ConfigurationError(
                f"proto_version {version} does not go with {self._reason}, which needs {self._needed}.",
                advice="leave proto_version out, or change the other option.",
            )

    def of_whole_transactions(self) -> StreamOptions:
        """The options with which no transaction waits for its commit on a disk or in the staging area.

        It would wait there as the server sent it, with the plain values of masked columns.

        :raises ConfigurationError: prepared transactions are wanted.
        """
        if self.two_phase:
            raise ConfigurationError(
                "two_phase does not go with masks: a prepared transaction waits in the staging area as it"
                " came.",
                advice="leave two_phase out, as long as columns of the lake are masked.",
            )
        return replace(self, streaming=STREAMING_OFF)

    def for_server(self, server: Server, publication_names: tuple[str, ...]) -> PluginOptions:
        """Choose what the user leaves to the server.

        :raises ConfigurationError: the server is too old for an option.
        """
        highest = max(each for each, first in _SERVER_WITH.items() if server.version >= first)
        version = self.proto_version or highest
        if version > highest or self._needed > highest:
            needed = max(version, self._needed)
            raise ConfigurationError(
                f"PostgreSQL {server.major} has protocol versions up to {highest}; {self._reason} needs "
                f"{needed}.",
                advice="leave the option out, or upgrade the server.",
            )
        filters_origins = server.version >= _SERVER_WITH_ORIGIN
        if self.origin == ORIGIN_NONE and not filters_origins and self.streaming in _STREAMS:
            raise ConfigurationError(
                f"PostgreSQL {server.major} does not filter by origin, and does not name the origin of what "
                "it streams.",
                advice="leave streaming out, or upgrade the server.",
            )
        streaming = self.streaming
        if streaming is None:
            streams = version >= _VERSION_FOR[STREAMING_ON] and self._may_stream(server)
            streaming = STREAMING_ON if streams else STREAMING_OFF
        return PluginOptions(
            publication_names=publication_names,
            proto_version=version,
            streaming=streaming,
            two_phase=self.two_phase,
            binary=self.binary,
            messages=self.messages,
            origin=self.origin,
            server_filters_origins=filters_origins,
            commits_without_prepare=server.version % 10000
            < _FIRST_WITH_EVERY_PREPARE.get(server.major, 0),
        )

    def _may_stream(self, server: Server) -> bool:
        """Whether streaming loses nothing that the user asked for.

        Streamed transactions come without their origin, and their messages without their subtransaction.
        """
        if self.messages:
            return False
        if self.origin == ORIGIN_NONE:
            return server.version >= _SERVER_WITH_ORIGIN
        return not server.has_origins

    @property
    def _needed(self) -> int:
        """The protocol version that the options need."""
        for_streaming = _VERSION_FOR[self.streaming or STREAMING_OFF]
        return max(for_streaming, _VERSION_FOR_TWO_PHASE if self.two_phase else 1)

    @property
    def _reason(self) -> str:
        """The option that needs the highest protocol version."""
        if self.two_phase and self.streaming != STREAMING_PARALLEL:
            return "two_phase"
        return "proto_version" if self.streaming is None else f"streaming {self.streaming!r}"


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The options of one read."""

    publication_names: tuple[str, ...]
    proto_version: int = 1
    streaming: str = STREAMING_OFF
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: str = ORIGIN_ANY
    #: Whether the server filters by origin itself. If not, the decoder does, see ``skip_origins``.
    server_filters_origins: bool = True
    #: Whether COMMIT PREPARED may come without a Prepare, see ``pgoutput/prepared.py``.
    commits_without_prepare: bool = False

    @property
    def skip_origins(self) -> bool:
        """Whether the decoder has to leave out transactions with an origin, because the server does not."""
        return self.origin == ORIGIN_NONE and not self.server_filters_origins

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Names and values for pgoutput. Its defaults are left out."""
        pairs = [
            ("proto_version", str(self.proto_version)),
            ("publication_names", publication_list(self.publication_names)),
        ]
        if self.streaming != STREAMING_OFF:
            pairs.append(("streaming", self.streaming))
        named = ("two_phase", self.two_phase), ("binary", self.binary), ("messages", self.messages)
        pairs += [(name, "on") for name, wanted in named if wanted]
        if self.origin != ORIGIN_ANY and self.server_filters_origins:
            pairs.append(("origin", self.origin))
        return tuple(pairs)

    def as_arguments(self) -> sql.Composed:
        """Arguments of the SQL functions: names and values in turns."""
        return sql.SQL(", ").join(sql.Literal(text) for pair in self.pairs for text in pair)

    def as_options(self) -> sql.Composed:
        """Options of START_REPLICATION."""
        return sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), _ReplicationLiteral(value))
            for name, value in self.pairs
        )


class _ReplicationLiteral(sql.Composable):
    """A literal of the walsender's own grammar. It has no ``E'...'``: a backslash is a plain character.

    Source: https://www.postgresql.org/docs/current/protocol-replication.html
    """

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        """The literal as the server reads it."""
        return b"'" + str(self._obj).replace("'", "''").encode() + b"'"


def publication_list(publication_names: tuple[str, ...]) -> str:
    """The value of the option ``publication_names``: quoted identifiers."""
    return ",".join('"' + name.replace('"', '""') + '"' for name in publication_names)
