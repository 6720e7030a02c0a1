"""Decodes Avro data with the schema that it was written with, by fastavro.

Values of logical types are Python's: datetime, date, time, Decimal, UUID. The value of a union is the value alone,
without the name of its branch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Self

from monitor.decoding.avro_depth import DepthCheck
from monitor.decoding.extras import import_extra
from monitor.decoding.framing import (
    SINGLE_OBJECT_MAGIC,
    SINGLE_OBJECT_PREFIX_BYTES,
    Frame,
    Framing,
    SchemaKey,
    framing_kind,
    schema_id,
)
from monitor.errors import InvalidEvent, UsageError

_FINGERPRINT: Final = "CRC-64-AVRO"


class RegisteredAvroSchema:
    """An Avro schema of the registry."""

    schema_type: Final = "AVRO"

    def __init__(self, key: SchemaKey, schema: str, referenced_schemas: Sequence[str]) -> None:
        """Parse a schema after the schemas that it refers to; raises `ValueError` for schemas that are not Avro's."""
        named_schemas: dict[str, Any] = {}
        for referenced_schema in referenced_schemas:
            _parse_schema(referenced_schema, named_schemas)
        parsed_schema = _parse_schema(schema, named_schemas)
        self._datum_reader = _DatumReader(parsed_schema, named_schemas, f"schema {schema_id(key)}")
        self._framing = Framing(framing_kind(key), "AVRO", schema_id(key), _schema_name(parsed_schema))

    def decode(self, frame: Frame) -> tuple[Any, Framing]:
        """Return the value of a frame; raises `InvalidEvent`."""
        return self._datum_reader.read(frame.data), self._framing


class LocalAvroSchema:
    """An Avro schema of a file, for data without framing or in Avro's single-object encoding."""

    def __init__(self, schema: str) -> None:
        named_schemas: dict[str, Any] = {}
        parsed_schema = _parse_schema(schema, named_schemas)
        fastavro_schema = import_extra("fastavro.schema")
        canonical_form = fastavro_schema.to_parsing_canonical_form(json.loads(schema))
        fingerprint = bytes.fromhex(fastavro_schema.fingerprint(canonical_form, _FINGERPRINT))
        self._prefix = SINGLE_OBJECT_MAGIC + fingerprint
        self._datum_reader = _DatumReader(parsed_schema, named_schemas, "the schema in avro_schema_file")
        name = _schema_name(parsed_schema)
        self._bare_framing = Framing("none", "AVRO", schema_name=name)
        self._single_object_framing = Framing("avro single object", "AVRO", schema_name=name)

    @classmethod
    def read(cls, path: str) -> Self:
        """Return the schema in a file; raises `UsageError` for a file that is not an Avro schema."""
        import_extra("fastavro")
        try:
            return cls(Path(path).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise UsageError(
                f'avro_schema_file: got "{path}", expected a file with an Avro schema ({error})'
            ) from error

    def decode(self, value: bytes) -> tuple[Any, Framing]:
        """Return the value of a message; raises `InvalidEvent`."""
        if not value.startswith(SINGLE_OBJECT_MAGIC):
            return self._datum_reader.read(value), self._bare_framing
        if value.startswith(self._prefix):
            return self._datum_reader.read(value[SINGLE_OBJECT_PREFIX_BYTES:]), self._single_object_framing
        try:  # Data without framing may begin with the same two bytes.
            return self._datum_reader.read(value), self._bare_framing
        except InvalidEvent:
            raise InvalidEvent(
                "unknown_schema", "Avro's single-object encoding of another schema than the one in avro_schema_file"
            ) from None


class _DatumReader:
    """Reads a value that fills its bytes exactly."""

    def __init__(self, parsed_schema: Any, named_schemas: Mapping[str, Any], label: str) -> None:
        self._schema = parsed_schema
        self._depth_check = DepthCheck(parsed_schema, named_schemas)
        self._label = label
        self._read: Callable[..., Any] = import_extra("fastavro").schemaless_reader

    def read(self, data: bytes) -> Any:
        stream = BytesIO(data)
        try:
            if self._depth_check.is_needed:
                self._depth_check.check(data)
            value = self._read(stream, self._schema, None)
        except Exception:  # noqa: BLE001  fastavro documents no exceptions, and a message must not stop the worker
            # The text of the exception may contain a value of the message.
            raise InvalidEvent(
                "invalid_avro", f"byte {stream.tell()} of {len(data)}: the data does not fit {self._label}"
            ) from None
        if stream.tell() != len(data):
            raise InvalidEvent(
                "invalid_avro", f"{stream.tell()} of {len(data)} bytes read: the data does not fit {self._label}"
            )
        return value


def _parse_schema(schema: str, named_schemas: dict[str, Any]) -> Any:
    """Return a parsed schema and add its names to `named_schemas`; raises `ValueError` for anything else."""
    try:
        return import_extra("fastavro").parse_schema(json.loads(schema), named_schemas=named_schemas)
    except UsageError:
        raise
    except Exception as error:  # fastavro documents no exceptions
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _schema_name(parsed_schema: Any) -> str | None:
    """Return the full name of a record; None for a union or a schema without a name."""
    name = parsed_schema.get("name") if isinstance(parsed_schema, dict) else None
    return name if isinstance(name, str) else None
