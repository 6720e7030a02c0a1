"""Decodes Protobuf data with descriptors from the registry.

A message becomes a dict with the field names of the schema:

- A field with presence (`optional`, `oneof`, proto2, messages) that is not set is absent.
- A number or boolean without presence is its value, 0 and false included. An empty string or bytes value is absent.
- A repeated field is a list, a map is a dict, both possibly empty. The keys of a map are text.
- An enum value is its name; a number that the schema does not name remains a number.
- `Timestamp` is a datetime in UTC, `Duration` is seconds, a wrapper is its value, `Struct`, `ListValue` and `Value` are
  dict, list and value.
"""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from monitor.decoding.extras import import_extra
from monitor.decoding.framing import Frame, Framing, SchemaKey, framing_kind, read_message_path, schema_id
from monitor.errors import InvalidEvent

Converter: TypeAlias = Callable[[Any], Any]

_STANDARD_FILES: Final = re.compile(r"(google/protobuf|google/type|confluent(?:/types?)?)/([a-z_]+)\.proto")
"""Names of the files that schemas import without a reference."""
_STANDARD_PACKAGES: Final = {
    "google/protobuf": "google.protobuf",
    "google/type": "google.type",
    "confluent": "confluent_kafka.schema_registry.confluent",
    "confluent/type": "confluent_kafka.schema_registry.confluent.type",
    "confluent/types": "confluent_kafka.schema_registry.confluent.types",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAIN_FILE: Final = "default"


class _MessageType(NamedTuple):
    parse: Callable[[bytes], Any]
    convert: Converter
    framing: Framing


class RegisteredProtobufFile:
    """A Protobuf file of the registry."""

    schema_type: Final = "PROTOBUF"

    def __init__(self, key: SchemaKey, schema: str, referenced_schemas: Mapping[str, str]) -> None:
        """Build the descriptors; raises `ValueError` for schemas that are not descriptors."""
        self._key = key
        self._file = _parse_file(_MAIN_FILE, schema)
        self._pool = _create_pool(
            self._file, {name: _parse_file(name, text) for name, text in referenced_schemas.items()}
        )
        self._converters = _Converters()
        self._message_types: dict[tuple[int, ...], _MessageType] = {}

    def decode(self, frame: Frame) -> tuple[Any, Framing]:
        """Return the fields of a message; raises `InvalidEvent`."""
        if frame.header_path is not None:
            path, _ = read_message_path(frame.header_path)
            data = frame.data
        else:
            path, end = read_message_path(frame.data)
            data = frame.data[end:]
        message_type = self._message_types.get(path) or self._find_message_type(path)
        try:
            return message_type.convert(message_type.parse(data)), message_type.framing
        except Exception:  # noqa: BLE001  the exceptions of the C library differ by version
            # The text of the exception may contain a value of the message.
            raise InvalidEvent(
                "invalid_protobuf",
                f"{len(data)} bytes: the data does not fit {message_type.framing.schema_name} of schema "
                f"{schema_id(self._key)}",
            ) from None

    def _find_message_type(self, path: tuple[int, ...]) -> _MessageType:
        messages, names = self._file.message_type, [self._file.package] if self._file.package else []
        for index in path:
            if index >= len(messages):
                raise InvalidEvent(
                    "invalid_protobuf",
                    f"message type {index} of {len(messages)} in schema {schema_id(self._key)} does not exist",
                )
            names.append(messages[index].name)
            messages = messages[index].nested_type
        descriptor = self._pool.FindMessageTypeByName(".".join(names))
        message_class = import_extra("google.protobuf.message_factory").GetMessageClass(descriptor)
        framing = Framing(framing_kind(self._key), "PROTOBUF", schema_id(self._key), descriptor.full_name)
        message_type = _MessageType(message_class.FromString, self._converters.find(descriptor), framing)
        self._message_types[path] = message_type
        return message_type


def _parse_file(name: str, text: str) -> Any:
    """Return the descriptor of a file from its base64; raises `ValueError` for anything else."""
    file_class = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto
    try:
        file = file_class.FromString(b64decode(text, validate=True)) if text else None
    except (import_extra("google.protobuf.message").DecodeError, ValueError):
        file = None
    if file is None:
        raise ValueError(
            "expected a serialized descriptor from the registry (format=serialized), which not every registry supports"
        )
    file.name = name
    return file


def _create_pool(main_file: Any, referenced_files: Mapping[str, Any]) -> Any:
    """Return a pool with the descriptors of a file and of its imports; raises `ValueError` if one is missing."""
    pool = import_extra("google.protobuf.descriptor_pool").DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        added.add(file.name)
        for name in file.dependency:
            if name in added:
                continue
            imported_file = referenced_files.get(name) or _find_standard_file(name)
            if imported_file is None:
                raise ValueError(f"the import {name} is not among the references of the schema")
            add(imported_file)
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            raise ValueError(f"the file {file.name} is invalid: {error}") from error

    add(main_file)
    return pool


def _find_standard_file(name: str) -> Any:
    """Return the descriptor of a file that schemas import without a reference; None for another file."""
    match = _STANDARD_FILES.fullmatch(name)
    if match is None:
        return None
    try:
        module = importlib.import_module(f"{_STANDARD_PACKAGES[match[1]]}.{match[2]}_pb2")
    except ImportError:
        return None
    file_class = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto
    return file_class.FromString(module.DESCRIPTOR.serialized_pb)


class _Converters:
    """Converters from messages to Python values, by message type."""

    def __init__(self) -> None:
        self._by_name: dict[str, Converter] = dict(_STANDARD_CONVERTERS)

    def find(self, descriptor: Any) -> Converter:
        """Return the converter of a message type."""
        converter = self._by_name.get(descriptor.full_name)
        if converter is None:
            # Registered before its fields are read, because a message type may contain itself.
            converter = self._by_name[descriptor.full_name] = _MessageConverter()
            converter.add_fields(descriptor, self)
        return converter


class _MessageConverter:
    """Converts messages of one type to dict."""

    def __init__(self) -> None:
        self._plain_names: list[str] = []
        """Numbers and booleans without presence."""
        self._texts: list[str] = []
        """Strings and bytes without presence."""
        self._enums: list[tuple[str, dict[int, str]]] = []
        """Enums without presence."""
        self._optional_fields: list[tuple[str, Converter | None]] = []
        self._repeated_fields: list[tuple[str, Converter]] = []

    def add_fields(self, descriptor: Any, converters: _Converters) -> None:
        """Read the fields of a message type."""
        for field in descriptor.fields:
            convert = _value_converter(field, converters)
            if field.is_repeated:
                self._repeated_fields.append((field.name, _repeated_converter(field, convert, converters)))
            elif field.has_presence:
                self._optional_fields.append((field.name, convert))
            elif field.enum_type is not None:
                self._enums.append((field.name, _enum_names(field.enum_type)))
            elif field.type in {field.TYPE_STRING, field.TYPE_BYTES}:
                self._texts.append(field.name)
            else:
                self._plain_names.append(field.name)

    def __call__(self, message: Any) -> dict[str, Any]:
        fields = {name: getattr(message, name) for name in self._plain_names}
        for name in self._texts:
            text = getattr(message, name)
            if text:
                fields[name] = text
        for name, enum_names in self._enums:
            number = getattr(message, name)
            fields[name] = enum_names.get(number, number)
        for name, convert in self._optional_fields:
            if message.HasField(name):
                value = getattr(message, name)
                fields[name] = value if convert is None else convert(value)
        for name, convert_all in self._repeated_fields:
            fields[name] = convert_all(getattr(message, name))
        return fields


def _value_converter(field: Any, converters: _Converters) -> Converter | None:
    """Return the converter of a single value; None for values that remain as they are."""
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return None
        return converters.find(field.message_type)
    if field.enum_type is not None:
        names = _enum_names(field.enum_type)
        return lambda number: names.get(number, number)
    return _check_text if field.type == field.TYPE_STRING else None


def _repeated_converter(field: Any, convert: Converter | None, converters: _Converters) -> Converter:
    """Return the converter of a repeated field or a map."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        convert_value = _value_converter(field.message_type.fields_by_name["value"], converters)
        if convert_value is None:
            return lambda entries: {_map_key(key): value for key, value in entries.items()}
        return lambda entries: {_map_key(key): convert_value(value) for key, value in entries.items()}
    if convert is None:
        return list
    return lambda values: [convert(value) for value in values]


def _map_key(key: object) -> str:
    """Return the key of a map as text: true and false for booleans."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _enum_names(enum_type: Any) -> dict[int, str]:
    """Return the names of an enum's numbers; of several names for one number, the first."""
    names: dict[int, str] = {}
    for value in enum_type.values:
        names.setdefault(value.number, value.name)
    return names


def _check_text(text: str | bytes) -> str:
    """Return a string; the library returns bytes for text of proto2 that is not UTF-8."""
    if isinstance(text, bytes):
        raise ValueError("expected text in UTF-8")  # noqa: TRY004  the value is wrong, and not its type
    return text


def _convert_timestamp(message: Any) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _convert_duration(message: Any) -> float:
    return float(message.seconds + message.nanos / 1e9)


def _convert_wrapper(message: Any) -> Any:
    return message.value


def _convert_struct(message: Any) -> dict[str, Any]:
    return {name: _convert_value(value) for name, value in message.fields.items()}


def _convert_list(message: Any) -> list[Any]:
    return [_convert_value(value) for value in message.values]


def _convert_value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    if kind == "struct_value":
        return _convert_struct(value)
    return _convert_list(value) if kind == "list_value" else value


_STANDARD_CONVERTERS: Final[Mapping[str, Converter]] = {
    "google.protobuf.Timestamp": _convert_timestamp,
    "google.protobuf.Duration": _convert_duration,
    "google.protobuf.Struct": _convert_struct,
    "google.protobuf.ListValue": _convert_list,
    "google.protobuf.Value": _convert_value,
    **{
        f"google.protobuf.{name}Value": _convert_wrapper
        for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    },
}
