"""The decoder of JSON values."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from monitor.errors import InvalidEvent

_decode: Final = msgspec.json.Decoder().decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError)
"""The text of an envelope may have half of a surrogate pair, which cannot be encoded."""


def parse_json(text: bytes | str) -> Any:
    """Return a JSON value; raises `InvalidEvent` for text that is not JSON in UTF-8."""
    try:
        return _decode(text)
    except _DECODE_ERRORS:
        raise InvalidEvent("invalid_json", "expected a JSON object in UTF-8") from None


def find_json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if the text is anything else."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        return None
    try:
        value = _decode(text)
    except _DECODE_ERRORS:
        return None
    return value if isinstance(value, dict) else None
