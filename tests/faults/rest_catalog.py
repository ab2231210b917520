"""An Iceberg REST catalog that can lose a commit's answer, or its request, as a network or a gateway does.

Requests are answered by Iceberg's own handlers (``org.apache.iceberg.rest.CatalogHandlers``), called in the
JVM of the test's Spark session on the catalog of the tests; so both catalogs show the same tables. What is
not here: authorisation, views, and whatever else the pipeline does not ask for.
Source: https://iceberg.apache.org/rest-catalog-spec/
"""

from __future__ import annotations

import enum
import http.server
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake

#: Ends the connection in the place of an answer.
NO_ANSWER = 0
_STATUS = {
    "NoSuchTableException": 404,
    "NoSuchNamespaceException": 404,
    "AlreadyExistsException": 409,
    "NamespaceNotEmptyException": 409,
    "CommitFailedException": 409,
}
_NOT_ACCEPTABLE, _NO_CONTENT = 406, 204


@dataclass(frozen=True, slots=True)
class Commit:
    """What a client asks to change of one table."""

    table: str
    #: Branches and tags that are set.
    set_references: tuple[str, ...]
    #: Branches and tags that are removed.
    removed_references: tuple[str, ...]
    adds_snapshot: bool

    @classmethod
    def of(cls, table: str, body: dict[str, Any]) -> Commit:
        """Read the request of a commit."""
        updates = body["updates"]
        return cls(
            table,
            tuple(each["ref-name"] for each in updates if each["action"] == "set-snapshot-ref"),
            tuple(each["ref-name"] for each in updates if each["action"] == "remove-snapshot-ref"),
            any(each["action"] == "add-snapshot" for each in updates),
        )


@dataclass(slots=True)
class Fault:
    """What happens to commits that ``chosen`` picks.

    :ivar status: of the answer, ``NO_ANSWER`` or what a gateway says.
    :ivar commits: whether the catalog commits all the same.
    :ivar times: how many commits it happens to.
    """

    chosen: Callable[[Commit], bool]
    status: int
    commits: bool
    times: int = 1
    happened: int = 0


class Pretence(enum.Enum):
    """What a catalog answers yes to and does otherwise."""

    #: As Nessie 0.99: a commit to a branch moves main.
    BRANCHES_ARE_MAIN = enum.auto()
    BRANCHES_MOVE_MAIN_TOO = enum.auto()
    NO_TAGS = enum.auto()
    #: Tables of version 3 are made in version 2.
    NO_VERSION_3 = enum.auto()

    def instead_of(self, text: str) -> str:
        """The request that is done in the place of another one."""
        request = json.loads(text)
        if "properties" in request and self is Pretence.NO_VERSION_3:
            request["properties"]["format-version"] = "2"
        updates = request.get("updates", [])
        references = [each for each in updates if each["action"] == "set-snapshot-ref"]
        for each in references:
            branch = each["type"] == "branch" and each["ref-name"] != "main"
            if branch and self is Pretence.BRANCHES_ARE_MAIN:
                each["ref-name"] = "main"
            if branch and self is Pretence.BRANCHES_MOVE_MAIN_TOO:
                updates.append({**each, "ref-name": "main"})
            if each["type"] == "tag" and self in (Pretence.NO_TAGS, Pretence.BRANCHES_ARE_MAIN):
                updates.remove(each)
        return json.dumps(request)


class RestCatalog:
    """A server on a port of this machine; ``spark_conf`` makes it a catalog of a Spark session."""

    def __init__(self, spark: SparkSession, lake: LocalLake) -> None:
        self._spark = spark
        self._handlers = _Handlers(spark, lake)
        self._lock = threading.Lock()
        self._faults: tuple[Fault, ...] = ()
        #: Answers every request with this status; None: none.
        self.denies: int | None = None
        #: Answers every request about this table with 403; None: none.
        self.denies_table: str | None = None
        #: What it answers yes to and does otherwise; None: nothing.
        self.pretends: Pretence | None = None
        #: Every request to commit, the oldest first.
        self.commits: list[Commit] = []
        catalog = self

        class Answer(_Answer):
            rest_catalog = catalog

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def properties(self) -> dict[str, str]:
        """What pyiceberg takes to make this a catalog."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._server.server_port}"}

    def spark_conf(self, name: str) -> dict[str, str]:
        """The Spark settings that make this the catalog ``name``."""
        prefix = f"spark.sql.catalog.{name}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "rest",
            f"{prefix}.uri": self.properties["uri"],
        }

    def attach(self, name: str) -> None:
        """Make this the catalog ``name`` of the session."""
        for key, value in self.spark_conf(name).items():
            self._spark.conf.set(key, value)

    def fail(self, *faults: Fault) -> None:
        """From now on let these faults happen, and no others."""
        with self._lock:
            self._faults = faults

    def stop(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def commit(self, namespace: str, table: str, text: str) -> tuple[int, str]:
        """Commit to a table, or let the fault happen; status and text of the answer."""
        if self.pretends is not None:
            text = self.pretends.instead_of(text)
        commit = Commit.of(table, json.loads(text))
        with self._lock:
            self.commits.append(commit)
            due = (each for each in self._faults if each.happened < each.times)
            fault = next((each for each in due if each.chosen(commit)), None)
            if fault is not None:
                fault.happened += 1
        if fault is None:
            return self._handlers.commit(namespace, table, text)
        if fault.commits:
            status, answer = self._handlers.commit(namespace, table, text)
            assert status == http.HTTPStatus.OK, answer
        return fault.status, _error(fault.status, "GatewayError", "no answer from the catalog")

    def answer(self, method: str, path: str, text: str) -> tuple[int, str]:
        """Answer one request: status and text."""
        if self.denies is not None:
            return self.denies, _error(self.denies, "Denied", "this login may not")
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")][1:]
        if self.denies_table is not None and self.denies_table in parts[3:4]:
            return 403, _error(403, "Denied", "this login may not use this table")
        match method, parts:
            case "POST", ["namespaces", namespace, "tables", table]:
                return self.commit(namespace, table, text)
            case "POST", [*_, "metrics"]:
                return _NO_CONTENT, ""
            case "POST", ["namespaces", _, "tables"] if self.pretends is not None:
                text = self.pretends.instead_of(text)
            case "GET", ["config"]:
                return http.HTTPStatus.OK, '{"defaults": {}, "overrides": {}}'
        return self._handlers.other(method, parts, text)


class _Handlers:
    """Iceberg's handlers in the JVM of a Spark session."""

    def __init__(self, spark: SparkSession, lake: LocalLake) -> None:
        jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._rest = jvm.org.apache.iceberg.rest
        self._identifiers = jvm.org.apache.iceberg.catalog
        properties = jvm.java.util.HashMap()
        prefix = f"spark.sql.catalog.{lake.catalog_name}."
        for name, value in lake.spark_conf().items():
            if name.startswith(prefix):
                properties.put(name.removeprefix(prefix), value)
        java: Any = spark._jsparkSession
        self._catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            lake.catalog_name, properties, java.sparkContext().hadoopConfiguration()
        )
        self._mapper = _mapper(jvm)

    def commit(self, namespace: str, table: str, text: str) -> tuple[int, str]:
        request = self._rest.requests.UpdateTableRequestParser.fromJson(text)
        return self._call("updateTable", self._catalog, self._table(namespace, table), request)

    def other(self, method: str, parts: list[str], text: str) -> tuple[int, str]:
        """Answer whatever is no commit."""
        match method, parts:
            case "GET" | "HEAD", ["namespaces", namespace]:
                call: tuple[Any, ...] = ("loadNamespace", self._namespace(namespace))
            case "POST", ["namespaces"]:
                request = self._read(text, self._rest.requests.CreateNamespaceRequest)
                call = ("createNamespace", request)
            case "DELETE", ["namespaces", namespace]:
                call = ("dropNamespace", self._namespace(namespace))
            case "GET", ["namespaces", namespace, "tables"]:
                call = ("listTables", self._namespace(namespace))
            case "POST", ["namespaces", namespace, "tables"]:
                request = self._read(text, self._rest.requests.CreateTableRequest)
                call = ("createTable", self._namespace(namespace), request)
            case "GET" | "HEAD", ["namespaces", namespace, "tables", table]:
                every = getattr(self._rest, "RESTCatalogProperties$SnapshotMode").ALL
                call = ("loadTable", self._table(namespace, table), every)
            case "DELETE", ["namespaces", namespace, "tables", table]:
                call = ("dropTable", self._table(namespace, table))
            case _:
                return _NOT_ACCEPTABLE, _error(_NOT_ACCEPTABLE, "Unsupported", f"{method} {parts}")
        name, *arguments = call
        return self._call(name, self._catalog, *arguments)

    def _call(self, name: str, *arguments: Any) -> tuple[int, str]:
        try:
            found = getattr(self._rest.CatalogHandlers, name)(*arguments)
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            status = _STATUS.get(kind, 400)
            return status, _error(status, kind, str(error.java_exception.getMessage()))
        if found is None:
            return _NO_CONTENT, ""
        return http.HTTPStatus.OK, str(self._mapper.writeValueAsString(found))

    def _read(self, text: str, java_class: Any) -> Any:
        return self._mapper.readValue(text, java_class._java_lang_class)

    def _namespace(self, name: str) -> Any:
        levels = self._gateway.new_array(self._gateway.jvm.java.lang.String, 1)
        levels[0] = name
        return self._identifiers.Namespace.of(levels)

    def _table(self, namespace: str, table: str) -> Any:
        return self._identifiers.TableIdentifier.of(self._namespace(namespace), table)


def _mapper(jvm: Any) -> Any:
    """Jackson as the REST client of Iceberg uses it; its own is not public."""
    jackson = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper()
    mapper.setVisibility(
        jackson.annotation.PropertyAccessor.FIELD,
        getattr(jackson.annotation, "JsonAutoDetect$Visibility").ANY,
    )
    mapper.setPropertyNamingStrategy(
        getattr(jackson.databind, "PropertyNamingStrategies$KebabCaseStrategy")()
    )
    jvm.org.apache.iceberg.rest.RESTSerializers.registerAll(mapper)
    return mapper


def _error(status: int, kind: str, message: str) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "code": status}})


class _Answer(http.server.BaseHTTPRequestHandler):
    """One request over HTTP."""

    rest_catalog: RestCatalog
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length).decode()
        status, answer = self.rest_catalog.answer(self.command, self.path, text)
        if status == NO_ANSWER:
            self.close_connection = True
            return
        body = b"" if self.command == "HEAD" or status == _NO_CONTENT else answer.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815 - named by http.server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing: the tests look at what came of a request."""
