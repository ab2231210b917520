"""An object store that fails as object stores do: as much of S3 as Arrow's file system asks for.

Objects live in memory. What is not here: signatures, which are not checked, versions, and whatever else the
staging area does not use.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html
"""

from __future__ import annotations

import http.server
import io
import itertools
import re
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUCKET = "bucket"
_MODIFIED = "2026-01-31T12:00:00.000Z"


class Action(Enum):
    """What happens to a request."""

    #: It is refused, as by a store that has too much to do.
    SLOW_DOWN = "slow down"
    #: It is refused for good, with the status and the code of ``refusal``.
    REFUSE = "refuse"
    #: The connection ends in the middle of what is sent; nothing is stored.
    CUT_REQUEST = "cut request"
    #: It is done, and the connection ends in place of the answer.
    CUT_ANSWER = "cut answer"
    #: It waits for ``seconds`` first.
    WAIT = "wait"


class Request(NamedTuple):
    """What a client asks for."""

    #: ``list``, ``head``, ``get``, ``delete``, or of an upload: ``begin``, ``part``, ``complete``, ``abort``.
    operation: str
    key: str


@dataclass(slots=True)
class Fault:
    """What happens to the first ``times`` requests that ``chosen`` picks."""

    action: Action
    chosen: Callable[[Request], bool]
    times: int = 1
    seconds: float = 0.0
    refusal: tuple[int, str] = (HTTPStatus.FORBIDDEN, "AccessDenied")
    happened: int = 0


@dataclass(slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class ObjectStore:
    """A store on a port of this machine; use it as a context manager."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        #: Keys with one of these in them are there, and in no listing yet.
        self.unlisted: tuple[str, ...] = ()
        #: Keys that are listed, though they are gone.
        self.listed_still: tuple[str, ...] = ()
        #: Whether an upload that was completed may be completed again, which stores answer in two ways.
        self.knows_completed = True
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._completed: set[str] = set()
        self._upload_ids = itertools.count(1)
        self._faults: tuple[Fault, ...] = ()
        self._lock = threading.Lock()
        store = self

        class Handler(_Handler):
            object_store = store

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What makes Arrow take this store for S3."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def fail(self, *faults: Fault) -> None:
        """From now on let these faults happen, and no others."""
        with self._lock:
            self._faults = faults

    def download(self, folder: Path) -> None:
        """Write all objects into a folder."""
        for key, content in self.objects.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def fault_of(self, request: Request) -> Fault | None:
        """The fault that a request meets now."""
        with self._lock:
            due = (each for each in self._faults if each.happened < each.times)
            found = next((each for each in due if each.chosen(request)), None)
            if found is not None:
                found.happened += 1
            return found

    def answer(self, request: Request, query: dict[str, list[str]], body: bytes) -> _Answer:
        """Do what a request asks for."""
        with self._lock:
            return getattr(self, f"_{request.operation}")(request.key, query, body)  # type: ignore[no-any-return]

    def _list(self, _key: str, query: dict[str, list[str]], _body: bytes) -> _Answer:
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        sizes = {key: len(content) for key, content in self.objects.items()}
        sizes |= dict.fromkeys(self.listed_still, 1)
        found, folders = [], set()
        for key in sorted(sizes):
            if not key.startswith(prefix) or any(part in key for part in self.unlisted):
                continue
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{_MODIFIED}</LastModified>"
                    f"<Size>{sizes[key]}</Size></Contents>"
                )
        parts = [f"<CommonPrefixes><Prefix>{escape(e)}</Prefix></CommonPrefixes>" for e in folders]
        return _xml("ListBucketResult", "<IsTruncated>false</IsTruncated>", *found, *parts)

    def _head(self, key: str, _query: dict[str, list[str]], _body: bytes) -> _Answer:
        if key not in self.objects:
            return _Answer(HTTPStatus.NOT_FOUND)
        length = {"Content-Length": str(len(self.objects[key]))}
        return _Answer(HTTPStatus.OK, headers=length)

    def _get(self, key: str, _query: dict[str, list[str]], _body: bytes) -> _Answer:
        if key not in self.objects:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchKey")
        return _Answer(HTTPStatus.OK, self.objects[key])

    def _delete(self, key: str, _query: dict[str, list[str]], _body: bytes) -> _Answer:
        self.objects.pop(key, None)
        return _Answer(HTTPStatus.NO_CONTENT)

    def _delete_many(self, _key: str, _query: dict[str, list[str]], body: bytes) -> _Answer:
        for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            self.objects.pop(key, None)
        return _xml("DeleteResult")

    def _put(self, key: str, _query: dict[str, list[str]], body: bytes) -> _Answer:
        self.objects[key] = body
        return _Answer(HTTPStatus.OK, headers={"ETag": '"1"'})

    def _begin(self, key: str, _query: dict[str, list[str]], _body: bytes) -> _Answer:
        upload = str(next(self._upload_ids))
        self._uploads[upload] = {}
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>",
        )

    def _part(self, _key: str, query: dict[str, list[str]], body: bytes) -> _Answer:
        parts = self._uploads.get(query["uploadId"][0])
        if parts is None:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchUpload")
        parts[int(query["partNumber"][0])] = body
        return _Answer(HTTPStatus.OK, headers={"ETag": '"1"'})

    def _complete(self, key: str, query: dict[str, list[str]], _body: bytes) -> _Answer:
        upload = query["uploadId"][0]
        parts = self._uploads.pop(upload, None)
        if parts is not None:
            self._completed.add(upload)
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        elif upload not in self._completed or not self.knows_completed:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchUpload")
        return _xml("CompleteMultipartUploadResult", f'<Key>{escape(key)}</Key><ETag>"1"</ETag>')

    def _abort(self, _key: str, query: dict[str, list[str]], _body: bytes) -> _Answer:
        self._uploads.pop(query["uploadId"][0], None)
        return _Answer(HTTPStatus.NO_CONTENT)


def _xml(name: str, *parts: str) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{"".join(parts)}</{name}>'
    return _Answer(HTTPStatus.OK, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    answer = _xml("Error", f"<Code>{code}</Code><Message>as the test wants it</Message>")
    return _Answer(status, answer.body, answer.headers)


def _operation(method: str, key: str, query: dict[str, list[str]]) -> str:
    if method in {"GET", "HEAD"}:
        return method.lower() if key else "list"
    if "uploadId" in query:
        return {"PUT": "part", "POST": "complete", "DELETE": "abort"}[method]
    if method == "POST":
        return "begin" if "uploads" in query else "delete_many"
    return method.lower()


def _unchunked(stream: io.BufferedIOBase) -> bytes:
    """What was sent in chunks, and after them perhaps lines of which we need none."""
    found = []
    while size := int(stream.readline().partition(b";")[0], 16):
        found.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(found)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One request over HTTP."""

    object_store: ObjectStore
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        parts = urlsplit(self.path)
        query: dict[str, Any] = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        request = Request(_operation(self.command, key, query), key)
        fault = self.object_store.fault_of(request)
        if fault is not None and fault.action is Action.CUT_REQUEST:
            self.rfile.readline()
            self.close_connection = True
            return
        body = self._body()
        if fault is not None and fault.action is Action.SLOW_DOWN:
            self._send(_error(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown"))
            return
        if fault is not None and fault.action is Action.REFUSE:
            self._send(_error(*fault.refusal))
            return
        if fault is not None:
            time.sleep(fault.seconds)
        answer = self.object_store.answer(request, query, body)
        if fault is not None and fault.action is Action.CUT_ANSWER:
            self.close_connection = True
            return
        self._send(answer)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = _unchunked(self.rfile)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
            body = _unchunked(io.BytesIO(body))
        return body

    def _send(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - named by http.server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing: the tests look at what came of a request."""
