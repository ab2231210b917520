"""How soon a source that is gone is noticed: the settings that every connection of ours begins with.

A dead host, a half-open connection and a network that swallows packets are noticed by the kernel, within
about a minute and a half. What is not here: a peer whose kernel answers while nothing else does; who
reads knows that better (``walsender_stream.py``).

Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from __future__ import annotations

from typing import Final

#: Parameters of libpq; those of the connection win.
DEFAULTS: Final = {
    #: Seconds for each address of the host.
    "connect_timeout": "30",
    #: Seconds of silence, seconds between probes, and probes without an answer.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    #: Milliseconds for which what we sent may stay unacknowledged.  Probes are not sent meanwhile, and the
    #: kernel alone would send again for a quarter of an hour.
    "tcp_user_timeout": "90000",
}
#: How often the server looks whether its client is still there while it works on an answer.  It would
#: else finish the answer of a reader that was killed before it noticed, and the slot is busy until then.
CLIENT_CHECK_INTERVAL: Final = "2s"
