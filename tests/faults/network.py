"""A TCP proxy between the package and a PostgreSQL server, and the ways in which a network fails.

It forwards bytes, and understands none of them: a fault strikes the connection on which the client sent
certain bytes, at a certain byte of what the server sent since. So it comes at the same place of the
conversation every time. A test that wants other words of the server gives ``rewrite``, which gets each of
the server's messages. What is not here: what must hold after a fault; the tests say it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_HOST = "127.0.0.1"
_READ_BYTES = 1 << 14
#: How long a pump sleeps before it looks whether the proxy was closed.
_PATIENCE_SECONDS = 0.1
#: What a client sends first when it wants TLS: length and code of an SSLRequest.
_TLS_REQUEST = struct.pack("!II", 8, 80877103)
#: Type of a message, and its length with the length itself.
_MESSAGE_HEADER = struct.Struct("!cI")
_RESET = struct.pack("ii", 1, 0)


class Action(Enum):
    """What a fault does to the connection that it strikes."""

    #: Both ends get a RST; the bytes that came too far are dropped.
    RESET = "reset"
    #: The server gets a RST, the client hears nothing any more.
    HALF_OPEN = "half-open"
    #: No byte passes in either direction until ``seconds`` are over; both kernels still answer.
    STALL = "stall"
    #: Bytes of the server pass at ``bytes_per_second``.
    SLOW = "slow"
    #: One bit of one byte of the server's is another one; all else passes.
    FLIP = "flip"
    #: What the client sends is not forwarded, and the client gets a RST.
    LOSE_REQUEST = "lose request"


@dataclass
class Fault:
    """One fault, which strikes ``times`` connections.

    :param marker: bytes that the client sends on the connection concerned; empty: on any.
    :param after_bytes: bytes of the server's that still pass after the marker was forwarded.
    """

    action: Action
    marker: bytes = b""
    after_bytes: int = 0
    seconds: float = 3600.0
    bytes_per_second: int = 0
    times: int = 1
    #: Set when it has struck.
    struck: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Forwards connections to a server on this machine; use it as a context manager.

    :param port: of the server.
    :param certificate: a file with a key and a certificate: clients that ask for TLS get it from here, and
        the server's side goes on in clear.
    :param rewrite: makes another message of the same length of each of the server's, its type and length
        included; for connections without TLS.
    """

    def __init__(
        self,
        port: int,
        fault: Fault | None = None,
        certificate: Path | None = None,
        rewrite: Callable[[bytes], bytes] | None = None,
    ):
        self._target = (_HOST, port)
        self.fault = fault
        self.rewrite = rewrite
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._listener = socket.create_server((_HOST, 0))
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._links: list[_Link] = []
        #: Connections that are let in from now on; later ones are refused. None: all.
        self.admits: int | None = None
        #: Connections that come now are accepted, and nobody listens to them.
        self.is_deaf = False
        self._unheard: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def conninfo(self, conninfo: str, **more: str) -> str:
        """The same connection, through here."""
        return make_conninfo(conninfo, host=_HOST, port=self.port, **more)

    def sent_by_clients(self, marker: bytes) -> list[bytes]:
        """All bytes from the marker on, of each connection whose client sent it."""
        found = [bytes(each.sent) for each in self._links]
        return [each[each.index(marker) :] for each in found if marker in each]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._listener.close()
        for link in self._links:
            link.close()
        for connection in self._unheard:
            connection.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self._listener.settimeout(_PATIENCE_SECONDS)
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self.is_deaf:
                self._unheard.append(client)
                continue
            if self.admits is not None:
                if self.admits == 0:
                    reset(client)
                    continue
                self.admits -= 1
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(None)
        try:
            if self._tls is not None and client.recv(8, socket.MSG_PEEK) == _TLS_REQUEST:
                client.recv(8)
                client.sendall(b"S")
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        link = _Link(self, client, server)
        self._links.append(link)
        self._start(link.to_client)
        link.to_server()

    def claim(self, sent: bytearray) -> Fault | None:
        """The fault, when the connection on which this was sent is the one that it strikes."""
        with self._lock:
            fault = self.fault
            if fault is None or fault.times == 0 or fault.marker not in sent:
                return None
            fault.times -= 1
            return fault

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than the proxy lives."""
        self._closing.wait(seconds)


class _Link:
    """One forwarded connection; each direction is pumped by a thread."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        #: All that the client sent, for finding markers and for tests to look at.
        self.sent = bytearray()
        self._fault: Fault | None = None
        #: Bytes of the server's that still pass.
        self._left = 0
        self._stalled_until = 0.0
        #: A RST ended one half or both, so nobody may end them in order any more.
        self._was_reset = False
        #: The beginning of a message of the server's, where each is rewritten.
        self._begun = b""

    def to_server(self) -> None:
        """Pump what the client sends."""
        while (data := self._read(self._client)) is not None:
            self.sent += data
            if self._fault is None:
                # Before the bytes are forwarded: the answer must not be faster.
                fault = self._proxy.claim(self.sent)
                if fault is not None:
                    self._left = fault.after_bytes
                    self._fault = fault
            fault = self._fault
            if fault is not None and fault.action is Action.LOSE_REQUEST:
                self._both_reset(fault)
                return
            self._hold()
            if not self._write(self._server, data):
                return

    def to_client(self) -> None:
        """Pump what the server sends, up to the byte at which the fault strikes."""
        while (data := self._read(self._server)) is not None:
            if self._proxy.rewrite is not None:
                data = b"".join(map(self._proxy.rewrite, self._messages(data)))
            fault = self._fault
            if fault is not None and not self._strike(fault, data):
                return
            if fault is None and not self._write(self._client, data):
                return

    def _messages(self, data: bytes) -> list[bytes]:
        """The messages of the server's that are complete with some more bytes."""
        found = []
        self._begun += data
        while len(self._begun) >= _MESSAGE_HEADER.size:
            _, length = _MESSAGE_HEADER.unpack_from(self._begun)
            if len(self._begun) < 1 + length:
                break
            found.append(self._begun[: 1 + length])
            self._begun = self._begun[1 + length :]
        return found

    def _strike(self, fault: Fault, data: bytes) -> bool:
        """Forward bytes under a fault; False: the connection has ended."""
        passing, rest = data[: self._left], data[self._left :]
        self._left -= len(passing)
        if not self._write(self._client, passing):
            return False
        if not rest:
            return True
        if fault.action is Action.SLOW:
            fault.struck.set()
            return self._trickle(rest, fault.bytes_per_second)
        if fault.action is Action.FLIP and not fault.struck.is_set():
            fault.struck.set()
            rest = bytes([rest[0] ^ 1]) + rest[1:]
        elif fault.action is Action.STALL and not fault.struck.is_set():
            self._stalled_until = time.monotonic() + fault.seconds
            fault.struck.set()
            self._hold()
        elif fault.action is Action.RESET:
            self._both_reset(fault)
            return False
        elif fault.action is Action.HALF_OPEN:
            self._was_reset = True
            fault.struck.set()
            reset(self._server)
            return False
        return self._write(self._client, rest)

    def _both_reset(self, fault: Fault) -> None:
        self._was_reset = True
        fault.struck.set()
        reset(self._client)
        reset(self._server)

    def _trickle(self, data: bytes, bytes_per_second: int) -> bool:
        step = max(1, bytes_per_second // 20)
        for first in range(0, len(data), step):
            if not self._write(self._client, data[first : first + step]):
                return False
            self._proxy.wait(1 / 20)
        return True

    def _hold(self) -> None:
        while not self._proxy.is_closing and (left := self._stalled_until - time.monotonic()) > 0:
            self._proxy.wait(left)

    def _read(self, source: socket.socket) -> bytes | None:
        """Some bytes; None: the connection has ended, and the other half of it was told."""
        try:
            data = source.recv(_READ_BYTES)
        except OSError:
            data = b""
        if data:
            return data
        if not self._was_reset:
            self.close()
        return None

    def _write(self, target: socket.socket, data: bytes) -> bool:
        try:
            target.sendall(data)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End both halves; whoever waits for one of them leaves."""
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def reset(connection: socket.socket) -> None:
    """End a connection with a RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # A thread that waits in recv() keeps the descriptor; it has to leave for the RST to be sent.
        connection.shutdown(socket.SHUT_RD)
    connection.close()
