"""The bytes before the data of a message: Confluent's schema ids and GUIDs, and Avro's single-object encoding.

Confluent's formats, V0 and V1:

- 0x00, the schema id in 4 bytes (big-endian), the data
- 0x01, the GUID of the schema in 16 bytes, the data
- either of these prefixes in the header `__value_schema_id`, and the value is the data alone. The header is read first.

After the id or GUID, Protobuf has the path to the message type: see `read_message_path`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from monitor.errors import InvalidEvent

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
FramingKind: TypeAlias = Literal["none", "confluent id", "confluent guid", "avro single object"]
SchemaKey: TypeAlias = int | bytes
"""A schema's id in the registry, or the 16 bytes of its GUID."""

SCHEMA_ID_HEADER: Final = "__value_schema_id"
SINGLE_OBJECT_MAGIC: Final = b"\xc3\x01"
SINGLE_OBJECT_PREFIX_BYTES: Final = 10
"""Magic bytes and CRC-64 fingerprint."""
_ID_MAGIC: Final = 0
_GUID_MAGIC: Final = 1
_ID_END: Final = 5
_GUID_END: Final = 17
_GLUE_MAGIC: Final = 3
_GLUE_COMPRESSIONS: Final = (0, 5)
_GLUE_PREFIX_BYTES: Final = 18
_MAX_VARINT_BYTES: Final = 5
_MAX_PATH_LENGTH: Final = 100
"""Protobuf's own limit of nested messages."""
_FIRST_MESSAGE: Final = (0,)


class Framing(NamedTuple):
    """How a message is encoded."""

    kind: FramingKind
    format: Literal["JSON", "AVRO", "PROTOBUF"]
    schema_id: int | str | None = None
    """The id in the registry, or the GUID as text."""
    schema_name: str | None = None
    """The full name of the Avro record or of the Protobuf message; the title of a JSON schema."""
    envelopes: tuple[str, ...] = ()
    """The envelopes that were removed, from the outside in."""


class Frame(NamedTuple):
    """The parts of a message with Confluent framing."""

    schema_key: SchemaKey
    data: bytes
    """For Protobuf with a prefix, the data begins with the path to the message type."""
    header_path: bytes | None
    """For a schema id in the header: the bytes after the id, which are the path to the message type."""


def has_prefix(value: bytes) -> bool:
    """Return whether a value begins as Confluent's framing does."""
    return value[0] in {_ID_MAGIC, _GUID_MAGIC}


def read_frame(value: bytes, schema_header: bytes | None) -> Frame | None:
    """Return the parts of a framed message, None without framing; raises `InvalidEvent` for incomplete framing."""
    if schema_header is not None:
        key, end = _read_schema_key(schema_header, f"header {SCHEMA_ID_HEADER}")
        return Frame(key, value, schema_header[end:])
    if not has_prefix(value):
        return None
    key, end = _read_schema_key(value, "message")
    return Frame(key, value[end:], None)


def _read_schema_key(prefix: bytes, place: str) -> tuple[SchemaKey, int]:
    magic, length = prefix[:1], len(prefix)
    if magic == b"\x00" and length >= _ID_END:
        return int.from_bytes(prefix[1:_ID_END], "big"), _ID_END
    if magic == b"\x01" and length >= _GUID_END:
        return prefix[1:_GUID_END], _GUID_END
    raise InvalidEvent(
        "invalid_framing",
        f"{place}: {length} bytes, expected 0 and a schema id of 4 bytes, or 1 and a GUID of 16 bytes",
    )


def remove_prefix(value: bytes) -> bytes:
    """Return a value without Confluent's prefix, which JSON cannot begin with."""
    if value[0] == _ID_MAGIC:
        return value[_ID_END:]
    return value[_GUID_END:] if value[0] == _GUID_MAGIC else value


def check_supported(value: bytes) -> None:
    """Raise `InvalidEvent` for the framing of AWS Glue, which is not supported."""
    if len(value) >= _GLUE_PREFIX_BYTES and value[0] == _GLUE_MAGIC and value[1] in _GLUE_COMPRESSIONS:
        raise InvalidEvent(
            "invalid_framing", "message: looks like the framing of AWS Glue, expected JSON or Confluent framing"
        )


def read_message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes that lead to a Protobuf message type in its file, and the number of bytes read.

    The bytes are zigzag varints: the number of indexes, then the indexes. The path [0] is the single byte 0.

    >>> read_message_path(bytes([0])), read_message_path(bytes([4, 2, 0]))
    (((0,), 1), ((1, 0), 3))
    """
    count, offset = _read_varint(data, 0)
    if count == 0:
        return _FIRST_MESSAGE, offset
    if not 0 < count <= _MAX_PATH_LENGTH:
        raise _path_rejection()
    indexes = []
    for _ in range(count):
        index, offset = _read_varint(data, offset)
        if index < 0:
            raise _path_rejection()
        indexes.append(index)
    return tuple(indexes), offset


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004  the last byte
            return (value >> 1) ^ -(value & 1), offset + shift + 1
    raise _path_rejection()


def _path_rejection() -> InvalidEvent:
    return InvalidEvent("invalid_framing", "expected the path to a Protobuf message type after the schema id")


def find_schema_header(headers: Headers) -> bytes | None:
    """Return the schema id in the headers of a record; None if absent."""
    for name, content in headers:
        if name == SCHEMA_ID_HEADER:
            return content
    return None


def framing_kind(key: SchemaKey) -> FramingKind:
    """Return the kind of framing that has such a key."""
    return "confluent id" if isinstance(key, int) else "confluent guid"


def schema_id(key: SchemaKey) -> int | str:
    """Return the id of a schema, or its GUID as text.

    >>> schema_id(7), schema_id(bytes(16))
    (7, '00000000-0000-0000-0000-000000000000')
    """
    return key if isinstance(key, int) else str(UUID(bytes=key))
