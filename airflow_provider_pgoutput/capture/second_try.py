"""What a server that could not give a batch as it was asked can be asked for instead."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.capture.request import AUTO, WALSENDER
from airflow_provider_pgoutput.capture.source.plugin_options import STREAMING_OFF
from airflow_provider_pgoutput.errors import (
    DecodedTooEarly,
    NoBinaryForm,
    PgoutputError,
    TemporaryFilesFull,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.request import CaptureRequest

log = logging.getLogger(__name__)

#: Errors after which something else can be asked for.
ANSWERED: Final = (DecodedTooEarly, NoBinaryForm, TemporaryFilesFull)


def easier(request: CaptureRequest, error: PgoutputError) -> CaptureRequest | None:
    """The request to try next; None: the error stands. Each is tried once, so this ends."""
    if isinstance(error, DecodedTooEarly):
        if request.options.streaming == STREAMING_OFF:
            return None
        log.warning("%s Reading again without streaming.", error)
        # A transaction that has ended every server can decode.
        return replace(request, options=replace(request.options, streaming=STREAMING_OFF))
    if isinstance(error, NoBinaryForm):
        if not request.options.binary:
            return None
        # What the attempt that failed began is gone with it, and values are the same in both forms.
        log.warning("%s The slot is read as text.", error)
        return replace(request, options=replace(request.options, binary=False))
    if request.transport != AUTO:
        return None
    log.warning("%s Reading again over the walsender.", error.message)
    return replace(request, transport=WALSENDER)
