"""Limits the depth of Avro data whose schema contains itself.

fastavro reads nested records by recursion in C, without a limit: some thousand levels overflow the stack and end the
process. Only a schema that contains itself, such as a tree of comments, allows so many levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 100
"""The limit of Protobuf."""
_FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS: Final = frozenset({"int", "long", "enum"})
_MAX_VARINT_BYTES: Final = 10


class DepthCheck:
    """Follows data of one schema without reading its values."""

    def __init__(self, parsed_schema: Any, named_schemas: Mapping[str, Any]) -> None:
        self._schema = parsed_schema
        self._named_schemas = named_schemas
        self.is_needed = self._contains_itself(parsed_schema, ())
        """Whether the schema contains itself."""

    def check(self, data: bytes) -> None:
        """Raise `ValueError` or `IndexError` for data that is nested too deeply or does not fit the schema."""
        self._skip(self._schema, data, 0, 0)

    def _contains_itself(self, schema: Any, outer_names: tuple[str, ...]) -> bool:
        if isinstance(schema, str):
            return schema in outer_names or (
                schema in self._named_schemas and self._contains_itself(self._named_schemas[schema], outer_names)
            )
        if isinstance(schema, list):
            return any(self._contains_itself(branch, outer_names) for branch in schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            names = (*outer_names, schema["name"])
            return any(self._contains_itself(field["type"], names) for field in schema["fields"])
        if kind in ("array", "map"):
            return self._contains_itself(schema["items" if kind == "array" else "values"], outer_names)
        return not isinstance(kind, str) and self._contains_itself(kind, outer_names)

    def _skip(self, schema: Any, data: bytes, offset: int, depth: int) -> int:
        """Return the offset after a value."""
        if isinstance(schema, list):
            index, offset = _read_varint(data, offset)
            if index < 0:
                raise ValueError("negative branch")
            return self._skip(schema[index], data, offset, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str) or kind in self._named_schemas:
            return self._skip(self._named_schemas[kind] if isinstance(kind, str) else kind, data, offset, depth)
        if kind in ("record", "error"):
            if depth == _MAX_DEPTH:
                raise ValueError("nested too deeply")
            for field in schema["fields"]:
                offset = self._skip(field["type"], data, offset, depth + 1)
        elif kind in ("array", "map"):
            offset = self._skip_blocks(schema, data, offset, depth)
        elif kind in _VARINTS:
            _, offset = _read_varint(data, offset)
        elif kind == "fixed":
            offset += schema["size"]
        else:
            offset = offset + _FIXED_BYTES[kind] if kind in _FIXED_BYTES else _skip_bytes(data, offset)
        return offset

    def _skip_blocks(self, schema: Any, data: bytes, offset: int, depth: int) -> int:
        """Return the offset after an array or a map."""
        while True:
            count, offset = _read_varint(data, offset)
            if count == 0:
                return offset
            if count < 0:  # The size of the block in bytes follows.
                _, offset = _read_varint(data, offset)
            if abs(count) > len(data):
                raise ValueError("more values than bytes")
            for _ in range(abs(count)):
                if "values" in schema:
                    offset = _skip_bytes(data, offset)
                offset = self._skip(schema["values" if "values" in schema else "items"], data, offset, depth)


def _skip_bytes(data: bytes, offset: int) -> int:
    length, offset = _read_varint(data, offset)
    if length < 0:
        raise ValueError("negative length")
    return offset + length


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MAX_VARINT_BYTES):
        byte = data[offset + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004  the last byte
            return (value >> 1) ^ -(value & 1), offset + shift + 1
    raise ValueError("a number of more than 10 bytes")
