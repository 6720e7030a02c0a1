"""Finds the schemas of messages in a schema registry with Confluent's API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol
from uuid import UUID

from monitor.clock import Clock, wall_clock
from monitor.config import SchemaRegistrySettings
from monitor.decoding.avro import RegisteredAvroSchema
from monitor.decoding.extras import import_extra
from monitor.decoding.framing import Frame, Framing, SchemaKey, framing_kind, schema_id
from monitor.decoding.json_objects import find_json_object, parse_json
from monitor.decoding.protobuf import RegisteredProtobufFile
from monitor.errors import DependencyUnavailable, InvalidEvent, UsageError, tls_failure_reason

_UNKNOWN_FOR_MS: Final = 30_000
"""How long an unknown schema is remembered before the registry is asked again."""
_MAX_UNKNOWN: Final = 10_000
_TIMEOUT_S: Final = 5
_RETRIES: Final = 1
_RETRY_WAIT_MS: Final = 200
"""Short, because the worker waits and tries again by itself."""
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_NOT_FOUND_CODES: Final = (40401, 40402, 40403)
"""The registry's codes for an unknown subject, version and schema; another 404 may be that of another server."""
_FOREIGN_REPLY: Final = "its answer is not that of a schema registry: check schema_registry.url"
_SERIALIZED: Final = "serialized"
"""The format of Protobuf schemas: a descriptor instead of text. It has no effect on other types."""


class SchemaDecoder(Protocol):
    """Decodes the data of frames with one schema."""

    @property
    def schema_type(self) -> Literal["JSON", "AVRO", "PROTOBUF"]: ...

    def decode(self, frame: Frame) -> tuple[Any, Framing]:
        """Return the value of a frame; raises `InvalidEvent`."""


class _JsonDecoder:
    schema_type: Final = "JSON"

    def __init__(self, key: SchemaKey, schema: str) -> None:
        title = (find_json_object(schema) or {}).get("title")
        name = title if isinstance(title, str) else None
        self._framing = Framing(framing_kind(key), "JSON", schema_id(key), name)

    def decode(self, frame: Frame) -> tuple[Any, Framing]:
        return parse_json(frame.data), self._framing


class _Rejection(NamedTuple):
    detail: str
    until_ms: int


class SchemaRegistry:
    """A client that fetches and parses each schema once."""

    def __init__(self, settings: SchemaRegistrySettings, clock: Clock = wall_clock) -> None:
        """Check the installed libraries and the settings; raises `UsageError`. Nothing is sent yet."""
        for module in ("fastavro", "google.protobuf"):
            import_extra(module)
        client_module = import_extra("confluent_kafka.schema_registry")
        self._registry_error: type[Exception] = client_module.SchemaRegistryError
        try:
            self._client = client_module.SchemaRegistryClient(_client_settings(settings))
        except (OSError, ValueError) as error:
            raise UsageError(f"schema_registry: the settings cannot be used: {error}") from error
        self._url = settings.url
        self._clock = clock
        self._decoders: dict[SchemaKey, SchemaDecoder] = {}
        self._unknown: dict[SchemaKey, _Rejection] = {}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check_connection(self) -> None:
        """Raise `DependencyUnavailable` if the registry cannot be used."""
        if not isinstance(self._call(self._client.get_schema_types), list):
            raise DependencyUnavailable(self._failure_text(_FOREIGN_REPLY))

    def find_decoder(self, key: SchemaKey) -> SchemaDecoder:
        """Return the decoder of a schema.

        Raises `InvalidEvent` for a schema that the registry does not have, and `DependencyUnavailable` if the registry
        does not answer.
        """
        decoder = self._decoders.get(key)
        if decoder is not None:
            return decoder
        rejection = self._unknown.get(key)
        if rejection is not None and self._clock() < rejection.until_ms:
            raise InvalidEvent("unknown_schema", rejection.detail)
        # The client would return a wrong reply again.
        self._client.clear_caches()
        try:
            decoder = self._fetch_decoder(key)
        except InvalidEvent as error:
            if len(self._unknown) >= _MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[key] = _Rejection(error.detail, self._clock() + _UNKNOWN_FOR_MS)
            raise
        self._unknown.pop(key, None)
        self._decoders[key] = decoder
        return decoder

    def _fetch_decoder(self, key: SchemaKey) -> SchemaDecoder:
        if isinstance(key, int):
            schema = self._find(partial(self._client.get_schema, key), key)
        else:
            schema = self._find(partial(self._client.get_schema_by_guid, str(UUID(bytes=key))), key)
        schema_type = schema.schema_type or "AVRO"
        if schema_type not in {"JSON", "AVRO", "PROTOBUF"}:
            raise _unknown_schema(key, f"of type {schema_type}, expected AVRO, PROTOBUF or JSON")
        text = schema.schema_str
        if schema_type == "JSON":
            return _JsonDecoder(key, text)
        referenced_files: dict[str, str] = {}
        self._fetch_references(schema, key, referenced_files, {})
        try:
            if schema_type == "AVRO":
                return RegisteredAvroSchema(key, text, [*referenced_files.values()])
            return RegisteredProtobufFile(key, text, referenced_files)
        except ValueError as error:
            raise _unknown_schema(key, f"not usable as {schema_type}: {error}") from error

    def _fetch_references(
        self, schema: Any, key: SchemaKey, files: dict[str, str], visited: dict[tuple[Any, ...], None]
    ) -> None:
        """Add the names and texts of referenced schemas to `files`, each after the schemas that it refers to."""
        for reference in schema.references or ():
            identity = (reference.name, reference.subject, reference.version)
            if identity in visited:
                continue
            visited[identity] = None
            referenced_schema = self._find(
                partial(self._client.get_version, reference.subject, reference.version, deleted=True),
                key,
                f"the reference {reference.name} (subject {reference.subject}, version {reference.version}) is",
            )
            self._fetch_references(referenced_schema, key, files, visited)
            files[str(reference.name)] = referenced_schema.schema_str

    def _find(self, request: Callable[..., Any], key: SchemaKey, subject: str = "") -> Any:
        """Return the schema that a request finds; `request` has an argument `fmt`."""
        try:
            try:
                reply = self._call(partial(request, fmt=_SERIALIZED))
            except _BadRequest:
                reply = self._call(request)  # Apicurio 3.3 accepts the format only for Protobuf.
        except _NotFound as error:
            if error.code not in _NOT_FOUND_CODES:
                # A server that has no such path: another address, or a registry without GUIDs.
                self.check_connection()
            raise _unknown_schema(key, f"{subject} not in the registry".lstrip()) from None
        schema = getattr(reply, "schema", reply)
        if not isinstance(schema.schema_str, str):
            raise DependencyUnavailable(self._failure_text(_FOREIGN_REPLY))
        return schema

    def _call(self, request: Callable[[], Any]) -> Any:
        """Return the reply to a request; raises `_NotFound` and `DependencyUnavailable`."""
        try:
            return request()
        except self._registry_error as error:
            status, code = getattr(error, "http_status_code", 0), getattr(error, "error_code", None)
            if status == _NOT_FOUND:
                raise _NotFound(self._failure_text(_status_reason(status)), code) from None
            failure = _BadRequest if status == _BAD_REQUEST else DependencyUnavailable
            raise failure(self._failure_text(_status_reason(status))) from None
        except Exception as error:  # the client passes on the exceptions of its HTTP library
            reason = tls_failure_reason(str(error)) or _failure_reason(error)
            raise DependencyUnavailable(self._failure_text(reason)) from error

    def _failure_text(self, reason: str) -> str:
        return f"the schema registry at {self._url} cannot be used: {reason}"


class _BadRequest(DependencyUnavailable):
    """The server replied with status 400."""


class _NotFound(DependencyUnavailable):
    """The server replied with status 404, and the registry's code of the error."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


def _client_settings(settings: SchemaRegistrySettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "url": settings.url,
        "timeout": _TIMEOUT_S,
        "max.retries": _RETRIES,
        "retries.wait.ms": _RETRY_WAIT_MS,
        "retries.max.wait.ms": _RETRY_WAIT_MS,
    }
    if settings.username is not None:
        options["basic.auth.user.info"] = f"{settings.username}:{settings.password or ''}"
    elif settings.token is not None:
        options |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": settings.token,
            "bearer.auth.logical.cluster": "",
        }
    certificates = {
        "ssl.ca.location": settings.ssl_ca_file,
        "ssl.certificate.location": settings.ssl_cert_file,
        "ssl.key.location": settings.ssl_key_file,
    }
    return options | {name: path for name, path in certificates.items() if path is not None}


def _status_reason(status: int) -> str:
    """Return the reason and the next step for a status of HTTP."""
    reason = f"it answered with HTTP status {status}"
    if status == 401:  # noqa: PLR2004  unauthorized
        return f"{reason}: check schema_registry.username and the password, or the token"
    if status == 403:  # noqa: PLR2004  forbidden
        return f"{reason}: the user or token of schema_registry may not read schemas"
    if status == _NOT_FOUND:
        return f"{reason} to a request for its schema types: check the path in schema_registry.url"
    if 300 <= status < 400:  # noqa: PLR2004  redirections
        return f"{reason}, a redirect: set schema_registry.url to the final address"
    return reason


def _failure_reason(error: Exception) -> str:
    """Return the reason why there was no usable reply."""
    name = type(error).__name__
    if "Timeout" in name:
        return f"no answer within {_TIMEOUT_S} s"
    if isinstance(error, (ValueError, TypeError, AttributeError, KeyError)):
        return _FOREIGN_REPLY
    return f"{name}: {error}"


def _unknown_schema(key: SchemaKey, problem: str) -> InvalidEvent:
    return InvalidEvent("unknown_schema", f"schema {schema_id(key)}: {problem}")
