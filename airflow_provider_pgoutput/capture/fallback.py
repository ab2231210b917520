"""What a server that could not give a batch as it was asked can be asked for instead.

A batch is the same whichever way it is read, so another way costs time and nothing else. Each is tried once
in a run. What leaves something out is never tried: ``skip_lsns`` is for a person to decide.
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

#: Errors after which one way is closed, now or for good, and the next may be open.
_CLOSED: Final = (
    ConfigurationError,
    MissingPrivilege,
    SlotBusy,
    SourceUnavailable,
    TemporaryFilesFull,
)


class _Way(NamedTuple):
    """Another way to read a batch that broke the protocol."""

    #: As in "Reading again ...".
    name: str
    #: The argument that takes this way from the beginning.
    argument: str
    request: CaptureRequest


class Tries:
    """How a run asks for its batch, and how it asked before."""

    def __init__(self, request: CaptureRequest) -> None:
        #: What to ask for now.
        self.request = request
        #: The protocol error that the request as it was made ended with.
        self._broken: ProtocolError | None = None
        self._ways: list[_Way] = []
        self._tried: list[_Way] = []

    def again(self, error: PgoutputError) -> None:
        """Choose what to ask for after an error.

        :raises PgoutputError: when nothing is left; the error itself, or one that says what was tried.
        """
        following = _easier(self.request, error)
        if following is not None:
            self.request = following
            return
        if self._broken is None:
            if not isinstance(error, ProtocolError) or error.column is not None:
                # A value that its type's output does not make is the same whichever way it comes.
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
        """Say it when the batch could not be read as it was asked for."""
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
    """The request to try next after an error that asks for a certain one; None: there is none."""
    if isinstance(error, DecodedTooEarly):
        if request.options.streaming == STREAMING_OFF:
            return None
        log.warning("%s Reading again without streaming.", error)
        # A transaction that has ended every server can decode.
        return _without_streaming(request)
    if isinstance(error, NoBinaryForm):
        if not request.options.binary:
            return None
        # What the attempt that failed began is gone with it, and values are the same in both forms.
        log.warning("%s The slot is read as text.", error)
        return replace(request, options=replace(request.options, binary=False))
    if isinstance(error, TemporaryFilesFull) and request.transport == AUTO:
        log.warning("%s Reading again over the walsender.", error.message)
        return replace(request, transport=WALSENDER)
    return None


def _other_ways(request: CaptureRequest) -> list[_Way]:
    """What can be tried after a protocol error, the way that changes less first."""
    if request.transport == WALSENDER:
        # Somebody may have chosen it because the server has no room for SQL: that is asked first.
        name, argument, transport = "over SQL", "transport='auto'", AUTO
    else:
        name, argument, transport = "over the walsender", "transport='walsender'", WALSENDER
    ways = [_Way(name, argument, replace(request, transport=transport))]
    if request.options.streaming != STREAMING_OFF and request.options.proto_version != 1:
        ways.append(_Way("without streaming", "streaming='off'", _without_streaming(request)))
    return ways


def _without_streaming(request: CaptureRequest) -> CaptureRequest:
    return replace(request, options=replace(request.options, streaming=STREAMING_OFF))
