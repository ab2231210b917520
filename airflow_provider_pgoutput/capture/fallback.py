"""Other ways to ask for a batch, when the server could not give it as it was asked.

A batch is the same whichever way it is read, so another way costs time only. Each way is tried once in a run.
A way that leaves something out is never tried: only a person decides about ``skip_lsns``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_pgoutput.capture.stream.options import AUTO, STREAMING_OFF, WALSENDER
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    DecodedTooEarly,
    MissingPrivilege,
    NoBinaryForm,
    PgoutputError,
    ProtocolError,
    RetryableError,
    SlotBusy,
    SourceUnavailable,
    TemporaryFilesFull,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.request import CaptureRequest

log = logging.getLogger(__name__)

#: After one of these errors this way of reading does not work, at least for now. Another one may.
_CLOSED: Final = (
    ConfigurationError,
    MissingPrivilege,
    SlotBusy,
    SourceUnavailable,
    TemporaryFilesFull,
)


class _Way(NamedTuple):
    """Another way to read a batch that broke the protocol."""

    #: As it stands after "Reading again ...".
    name: str
    #: The argument that takes this way from the beginning.
    argument: str
    request: CaptureRequest


class Tries:
    """How a run asks for its batch now, and how it asked before."""

    def __init__(self, request: CaptureRequest) -> None:
        #: What to ask for now.
        self.request = request
        #: The protocol error with which the original request ended.
        self._broken: ProtocolError | None = None
        self._ways: list[_Way] = []
        self._tried: list[_Way] = []

    def again(self, error: PgoutputError) -> None:
        """Choose what to ask for after an error.

        :raises PgoutputError: no way is left. It is the error itself, or one that names what was tried.
        """
        following = _easier(self.request, error)
        if following is not None:
            self.request = following
            return
        if self._broken is None:
            if not isinstance(error, ProtocolError) or error.column is not None:
                # The server sent a value that the type of this column never has. Another way would bring the
                # same value.
                raise error
            self._broken = error
            self._ways = _other_ways(self.request)
        elif not isinstance(error, (ProtocolError, *_CLOSED)):
            raise error
        if not self._ways:
            if isinstance(error, RetryableError):
                raise error
            raise self._exhausted(self._broken) from error
        way = self._ways.pop(0)
        self._tried.append(way)
        log.warning(
            "Slot %s: %s (LSN %s) Reading again %s.",
            self.request.slot_name,
            error.message,
            error.lsn,
            way.name,
        )
        self.request = way.request

    def succeeded(self) -> None:
        """Log it if the batch could not be read in the way that was asked for."""
        if self._broken is None:
            return
        way = self._tried[-1]
        log.warning(
            "Slot %s: the batch was read %s, because otherwise what the server sent broke the protocol."
            " Nothing is missing in it. Please report it with the server's version; until it is mended, %s"
            " saves the attempts that fail. It was: %s",
            self.request.slot_name,
            way.name,
            way.argument,
            self._broken.message,
        )

    def _exhausted(self, broken: ProtocolError) -> ProtocolError:
        tried = "".join(f" It was also read {way.name}, which did not help." for way in self._tried)
        return ProtocolError(
            f"{broken.message}{tried}",
            slot=broken.slot,
            table=broken.table,
            column=broken.column,
            lsn=broken.lsn,
            advice=broken.advice,
        )


def _easier(request: CaptureRequest, error: PgoutputError) -> CaptureRequest | None:
    """The next request after an error that calls for a certain one; None: there is none."""
    if isinstance(error, DecodedTooEarly):
        if request.options.streaming == STREAMING_OFF:
            return None
        log.warning("%s Reading again without streaming.", error)
        # Every server can decode a transaction that has ended.
        return _without_streaming(request)
    if isinstance(error, NoBinaryForm):
        if not request.options.binary:
            return None
        # The failed attempt staged nothing that counts, and values are the same in both forms.
        log.warning("%s The slot is read as text.", error)
        return replace(request, options=replace(request.options, binary=False))
    if isinstance(error, TemporaryFilesFull) and request.transport == AUTO:
        log.warning("%s Reading again over the walsender.", error.message)
        return replace(request, transport=WALSENDER)
    return None


def _other_ways(request: CaptureRequest) -> list[_Way]:
    """The ways to try after a protocol error. The one that changes least comes first."""
    if request.transport == WALSENDER:
        # The walsender may have been chosen because the server has no room for SQL. ``auto`` asks for the
        # room first.
        name, argument, transport = "over SQL", "transport='auto'", AUTO
    else:
        name, argument, transport = "over the walsender", "transport='walsender'", WALSENDER
    ways = [_Way(name, argument, replace(request, transport=transport))]
    if request.options.streaming != STREAMING_OFF and request.options.proto_version != 1:
        ways.append(_Way("without streaming", "streaming='off'", _without_streaming(request)))
    return ways


def _without_streaming(request: CaptureRequest) -> CaptureRequest:
    return replace(request, options=replace(request.options, streaming=STREAMING_OFF))
