"""The attributes of native responses: fields that experiments or sources name in `exclude` or `unit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import msgspec

from monitor.config import parse_path, value_text
from monitor.errors import InvalidEvent


@final
class AttributeReader:
    """Reads attributes from messages; without names, no message is read."""

    __slots__ = ("_decode", "_fields", "_paths")

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are names of fields, or names joined by dots."""
        self._paths: Final[list[tuple[str, list[str]]]] = [
            (name, [str(step) for step in parse_path(name).steps]) for name in names
        ]
        self._fields: Final = sorted({steps[0] for _, steps in self._paths})
        # A struct of these fields alone, so that msgspec skips all others.
        members: list[tuple[str, Any, Any]] = [(f"f{index}", Any, None) for index in range(len(self._fields))]
        schema = msgspec.defstruct(
            "Attributes", members, rename={f"f{index}": name for index, name in enumerate(self._fields)}
        )
        self._decode: Final[Any] = msgspec.json.Decoder(schema).decode

    def read_message(self, content: bytes) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of the attributes with a value, for a valid event as JSON; raises `InvalidEvent`."""
        if not self._paths:
            return ()
        try:
            values = msgspec.structs.astuple(self._decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The decoder of the event skips other fields, and accepts some values that are not valid.
            raise InvalidEvent("invalid_json", "expected a JSON object in UTF-8") from None
        return self.read_fields(dict(zip(self._fields, values, strict=True)))

    def read_fields(self, fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of the attributes with a value, for the fields of an event; raises `InvalidEvent`."""
        pairs: list[tuple[str, str]] = []
        for name, steps in self._paths:
            value: Any = fields
            for step in steps:
                value = value.get(step) if isinstance(value, dict) else None
            if value is None or value == "":
                continue
            text = value_text(value)
            if text is None:
                raise InvalidEvent("wrong_type", f"{name}: expected a string, a number or a boolean")
            pairs.append((name, text))
        return tuple(pairs)
