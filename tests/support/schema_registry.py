"""A schema registry in memory: the REST contract of Confluent's registry, as far as clients and serializers use it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

import fastavro

from tests.servers.process import free_port

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class _RegistryError(Exception):
    """A reply with an error code of the registry."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class _Schema:
    schema_type: str
    text: str
    references: tuple[tuple[str, str, int], ...]

    @property
    def guid(self) -> str:
        """The same for equal schemas in every registry."""
        return str(UUID(bytes=hashlib.md5(repr(self).encode(), usedforsecurity=False).digest()))

    def reply(self, schema_format: str | None) -> dict[str, Any]:
        """Return the JSON of a schema; descriptors of Protobuf only if the client asks for them."""
        text = self.text
        if self.schema_type == "PROTOBUF" and schema_format != "serialized":
            text = 'syntax = "proto3";\n// The text of the file.\n'
        reply: dict[str, Any] = {"schema": text, "guid": self.guid}
        if self.schema_type != "AVRO":
            reply["schemaType"] = self.schema_type
        if self.references:
            names = ("name", "subject", "version")
            reply["references"] = [dict(zip(names, reference, strict=True)) for reference in self.references]
        return reply


@dataclass(slots=True)
class _Content:
    ids: dict[_Schema, int] = field(default_factory=dict)
    subjects: dict[str, list[_Schema]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the id of a schema; equal schemas have one id in all subjects."""
        schema = self._parse(body)
        with self.lock:
            schema_id = self.ids.setdefault(schema, len(self.ids) + 1)
            versions = self.subjects.setdefault(subject, [])
            if schema not in versions:
                versions.append(schema)
        return {"id": schema_id, "version": versions.index(schema) + 1, **schema.reply("serialized")}

    def look_up(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the version of a schema in a subject."""
        schema, versions = self._parse(body), self.versions(subject)
        if schema not in versions:
            raise _RegistryError(404, 40403, "Schema not found")
        return self.version(subject, str(versions.index(schema) + 1), None)

    def versions(self, subject: str) -> list[_Schema]:
        """Return the schemas of a subject in the order of their versions."""
        if subject not in self.subjects:
            raise _RegistryError(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def version(self, subject: str, version: str, schema_format: str | None) -> dict[str, Any]:
        """Return one version of a subject."""
        versions = self.versions(subject)
        number = len(versions) if version in {"latest", "-1"} else int(version)
        if not 1 <= number <= len(versions):
            raise _RegistryError(404, 40402, f"Version {version} not found.")
        schema = versions[number - 1]
        return {"subject": subject, "version": number, "id": self.ids[schema], **schema.reply(schema_format)}

    def find(self, identity: int | str) -> _Schema:
        """Return a schema by its id or GUID."""
        for schema, schema_id in self.ids.items():
            if identity in {schema_id, schema.guid}:
                return schema
        raise _RegistryError(404, 40403, f"Schema {identity} not found")

    def _parse(self, body: Mapping[str, Any]) -> _Schema:
        references = tuple((each["name"], each["subject"], each["version"]) for each in body.get("references") or ())
        schema = _Schema(body.get("schemaType", "AVRO"), body["schema"], references)
        try:
            texts = self._referenced_texts(schema)
            if schema.schema_type == "AVRO":
                named_schemas: dict[str, Any] = {}
                for text in texts:
                    fastavro.parse_schema(json.loads(text), named_schemas)
                fastavro.parse_schema(json.loads(schema.text), named_schemas)
            elif schema.schema_type == "PROTOBUF":
                base64.b64decode(schema.text, validate=True)
            else:
                json.loads(schema.text)
        except Exception as error:  # fastavro documents no exceptions
            raise _RegistryError(422, 42201, f"Invalid schema: {error}") from error
        return schema

    def _referenced_texts(self, schema: _Schema) -> list[str]:
        """Return the texts of all referenced schemas, each after the schemas that it refers to, and once."""
        texts: dict[str, None] = {}
        for _, subject, version in schema.references:
            referenced_schema = self.versions(subject)[version - 1]
            texts.update(dict.fromkeys(self._referenced_texts(referenced_schema)))
            texts[referenced_schema.text] = None
        return [*texts]


class SchemaRegistryServer:
    """A registry on a port of its own; it keeps its schemas while it is stopped.

    `credentials` is the value of the header Authorization that every request must have; `tls` is the context of HTTPS.
    """

    def __init__(self, credentials: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        """The paths of all requests, with their queries."""
        self.failure: int | None = None
        """The status of every reply; None to answer."""
        self.body = b"{}"
        """The body of failures."""
        self.silent = threading.Event()
        """Set: requests get no reply."""
        self._credentials = credentials
        self._tls = tls
        self._content = _Content()
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The address of the registry."""
        return f"http{'s' if self._tls else ''}://localhost:{self._port}"

    def register(self, subject: str, schema: str, schema_type: str = "AVRO", *references: tuple[str, str, int]) -> int:
        """Return the id of a schema, which is registered if it is new."""
        names = ("name", "subject", "version")
        body = {
            "schema": schema,
            "schemaType": schema_type,
            "references": [dict(zip(names, reference, strict=True)) for reference in references],
        }
        return int(self._content.register(subject, body)["id"])

    def guid(self, schema_id: int) -> UUID:
        """Return the GUID of a schema."""
        return UUID(self._content.find(schema_id).guid)

    def start(self) -> None:
        """Start to listen."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry._answer(self, None)

            def do_POST(self) -> None:
                registry._answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """Ignore connections that the client has closed."""

        self._server = Server(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stop to listen."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.silent.clear()
        self.stop()

    def _answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        self.requests.append(handler.path)
        if self.silent.is_set():
            handler.close_connection = True
            threading.Event().wait(0.5)
            return
        status, reply = 200, b""
        try:
            if self.failure is not None:
                status, reply = self.failure, self.body
            else:
                self._check_credentials(handler.headers["Authorization"])
                reply = json.dumps(self._route(handler.command, handler.path, body)).encode()
        except _RegistryError as error:
            status = error.status
            reply = json.dumps({"error_code": error.code, "message": str(error)}).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", _CONTENT_TYPE)
        if 300 <= status < 400:
            handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", str(len(reply)))
        # No connection outlives the server, as if its process had ended.
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(reply)

    def _check_credentials(self, authorization: str | None) -> None:
        if self._credentials is not None and authorization != self._credentials:
            raise _RegistryError(401, 401, "Unauthorized")

    def _route(self, method: str, address: str, body: Any) -> Any:
        parts = urlsplit(address)
        path, schema_format = unquote(parts.path), parse_qs(parts.query).get("format", [None])[0]
        content = self._content
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", r"/subjects/(.+)/versions", lambda subject: content.register(subject, body)),
            ("POST", r"/subjects/([^/]+)", lambda subject: content.look_up(subject, body)),
            ("GET", r"/schemas/types", lambda: ["JSON", "PROTOBUF", "AVRO"]),
            ("GET", r"/subjects", lambda: [*content.subjects]),
            ("GET", r"/schemas/ids/(\d+)", lambda number: content.find(int(number)).reply(schema_format)),
            ("GET", r"/schemas/guids/([0-9a-f-]{36})", lambda guid: content.find(guid).reply(schema_format)),
            ("GET", r"/subjects/(.+)/versions", lambda subject: [*range(1, len(content.versions(subject)) + 1)]),
            (
                "GET",
                r"/subjects/(.+)/versions/(latest|-?\d+)",
                lambda subject, version: content.version(subject, version, schema_format),
            ),
        ]
        for route_method, pattern, handle in routes:
            match = re.fullmatch(pattern, path)
            if route_method == method and match is not None:
                return handle(*match.groups())
        raise _RegistryError(404, 404, "HTTP 404 Not Found")
