"""A server on a free port of 127.0.0.1 that answers with JSON, for what a client really sends."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """Answers requests. A subclass has ``do_GET`` and the like, which end with ``answer``."""

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(handler: type[JsonHandler]) -> Iterator[int]:
    """Serve, and give the port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
