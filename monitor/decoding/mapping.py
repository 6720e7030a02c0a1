"""The mapping of fields: a document → the fields of a response or of feedback (docs/sources.md).

Without a declared cast, a text field takes a string or an integer, a number takes a number, and a time takes ISO 8601
with an offset, milliseconds, or a time of Avro or Protobuf. An empty string is no value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from monitor.config import (
    FieldMapping,
    FieldValue,
    ItemsMapping,
    Lookup,
    Path,
    SourceSettings,
    Step,
    event_fields,
    parse_path,
    value_text,
)
from monitor.decoding.json_objects import parse_json
from monitor.errors import InvalidEvent
from monitor.events import MAX_POSITION, WireFeedback, WireItem, WireResponse, parse_timestamp_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_UNITS: Final[Mapping[str, tuple[str, Decimal]]] = {
    "s": ("seconds", Decimal(1000)),
    "ms": ("milliseconds", Decimal(1)),
    "us": ("microseconds", Decimal("0.001")),
    "ns": ("nanoseconds", Decimal("0.000001")),
}
"""Cast → (name of the unit, milliseconds per unit)."""
_MAX_PLAUSIBLE_MS: Final = 10**15
_MAX_PLAUSIBLE_S: Final = _MAX_PLAUSIBLE_MS // 1000
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
TRUE_WORDS: Final = frozenset({"true", "t", "yes", "y", "on", "up", "1"})
FALSE_WORDS: Final = frozenset({"false", "f", "no", "n", "off", "down", "0"})
_COMPOSITE_ROOTS: Final = ("element", "envelope")
_DERIVED_ID_BYTES: Final = 16
_MAX_INTEGER_BITS: Final = 128
_MAX_SHOWN_NUMBER: Final = 9_999_999
_TYPE_NAMES: Final[Mapping[type, str]] = {
    int: "an integer",
    float: "a number",
    Decimal: "a number",
    datetime: "a time",
    date: "a date",
    UUID: "a UUID",
}


class MessageContext:
    """A message with its metadata, from which paths read values."""

    __slots__ = (
        "element",
        "envelope",
        "fields",
        "headers",
        "index",
        "key",
        "offset",
        "partition",
        "timestamp",
        "topic",
    )

    def __init__(
        self,
        fields: Mapping[str, Any],
        envelope: Mapping[str, Any],
        headers: Sequence[tuple[str, bytes | None]],
        key: bytes | None,
        timestamp: int | None,
        topic: str,
        partition: str,
        offset: int,
    ) -> None:
        self.fields = fields
        self.envelope = envelope
        self.headers = headers
        self.key = key
        self.timestamp = timestamp
        """Kafka's time of the record in ms."""
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.element: Any = None
        """The current element of `each`."""
        self.index: int | None = None
        """Index of the element, from 0."""


Getter = Callable[[MessageContext], Any]
"""Returns the value at a path; None if there is none. The value of a path with `[*]` is a list."""


def compile_path(path: Path) -> Getter:
    """Return a function that reads the value at a path of a message."""
    steps = path.steps
    if path.root == "value":
        follow = _compile_steps(steps)
        return lambda message: follow(message.fields)
    if path.root in _COMPOSITE_ROOTS:
        root = path.root
        return lambda message: _walk(getattr(message, root), steps)
    if path.root == "headers":
        return partial(_find_header, steps[0])
    if path.root == "key":
        return (lambda message: _walk(_parse_key(message), steps)) if steps else _read_key
    attribute = path.root
    return lambda message: getattr(message, attribute)


def _read_no_value(_message: MessageContext) -> None:
    """Return None, for a field without paths."""


def _find_header(name: Step, message: MessageContext) -> str | None:
    """Return the text of the first header of a name; None without a text."""
    return next((_decode_text(content) for header, content in message.headers if header == name), None)


def _read_key(message: MessageContext) -> str | None:
    """Return the key, which must be text or a JSON string; the bytes of an encoding are no usable id."""
    if message.key is None:
        return None
    text = _decode_text(message.key)
    if text is not None and text.startswith('"'):
        text = _parse_key(message)
    if not isinstance(text, str) or not text.isprintable():
        raise InvalidEvent("wrong_type", f"$key: got {describe_shape(message.key)}, expected text in UTF-8")
    return text


def _parse_key(message: MessageContext) -> Any:
    """Return the JSON value of the key; None without a key in JSON."""
    if message.key is None:
        return None
    with suppress(InvalidEvent):
        return parse_json(message.key)
    return None


def _member_names(path: Path) -> list[str] | None:
    """Return the names of members in a path that has nothing else; None for other paths."""
    names = [step for step in path.steps if isinstance(step, str)]
    return names if path.root == "value" and names and len(names) == len(path.steps) else None


def _compile_steps(steps: Sequence[Step]) -> Callable[[Any], Any]:
    """Return a function that reads the value at the end of the steps; None if there is none."""
    if not steps or not all(isinstance(step, str) for step in steps):
        return lambda value: _walk(value, steps)

    first, *inner_steps = steps

    def read_member(value: Any) -> Any:
        try:
            return value[first]
        except (KeyError, TypeError):  # no such member, or not an object
            return None

    def read_inner_member(value: Any) -> Any:
        try:
            value = value[first]
            for name in inner_steps:
                value = value[name]
        except (KeyError, TypeError):
            return None
        return value

    return read_inner_member if inner_steps else read_member


def _walk(value: Any, steps: Sequence[Step]) -> Any:
    """Return the value at the end of the steps; None if there is none."""
    for index, step in enumerate(steps):
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        elif isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        elif isinstance(step, Lookup):
            value = _find_element(value, step)
        elif isinstance(value, list):
            values = [_walk(element, steps[index + 1 :]) for element in value]
            # Objects without the inner list, which some formats omit if it is empty, have no elements.
            return [
                inner for item in values if item is not None for inner in (item if isinstance(item, list) else [item])
            ]
        else:
            value = None
        if value is None:
            return None
    return value


def _find_element(value: Any, lookup: Lookup) -> Any:
    """Return the first object of a list with the looked-up member."""
    elements = value if isinstance(value, list) else ()
    return next(
        (
            element
            for element in elements
            if isinstance(element, dict) and value_text(element.get(lookup.key)) == lookup.value
        ),
        None,
    )


def _decode_text(content: bytes | None) -> str | None:
    """Return bytes as text; None without bytes, or if they are not UTF-8."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def describe_shape(value: object) -> str:
    """Return the type and size of a value, never its content.

    >>> describe_shape("secret"), describe_shape([1, 2]), describe_shape(None)
    ('a string of 6 characters', 'a list of 2 elements', 'null')
    """
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, dict):
        return f"an object with {len(value)} members"
    if isinstance(value, list):
        return f"a list of {len(value)} elements"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return "null" if value is None else _TYPE_NAMES.get(type(value), "another type")


def has_value(value: object) -> bool:
    """Return whether a value counts as given: null and empty texts do not."""
    return value is not None and value not in ("", b"")


class FieldReader:
    """Reads a field of an event from messages."""

    def __init__(self, name: str, mapping: FieldMapping, *, is_required: bool, has_index: bool = False) -> None:
        """Compile a mapping; with `has_index`, the index of the element becomes the end of the value."""
        self.name = name
        self._mapping = mapping
        self._getters = [compile_path(path) for path in mapping.paths]
        self._convert = _CONVERTERS.get(name, _to_text)
        self._is_required = is_required
        self._has_index = has_index
        self._zone = None if mapping.zone is None else ZoneInfo(mapping.zone)
        self.read = self._compile()
        """Returns the field's value, None for an optional field without a value; raises `InvalidEvent`."""

    def _compile(self) -> Getter:
        """Return a function that reads the usual values fast, and leaves all others to `_read_any`."""
        mapping = self._mapping
        names = _member_names(mapping.paths[0]) if len(mapping.paths) == 1 else None
        if names is None or mapping.is_derived or self._has_index:
            return self._read_any
        shortcuts, read_any = self._shortcuts(), self._read_any

        def read(message: MessageContext) -> Any:
            value: Any = message.fields
            try:
                for name in names:
                    value = value[name]
                converted = shortcuts[type(value)](value)
            except (KeyError, TypeError):  # no such member, not an object, or a type without a shortcut
                return read_any(message)
            return read_any(message) if converted is None else converted

        return read

    def _shortcuts(self) -> Mapping[type, Callable[[Any], Any]]:
        """Return type of a value → function that converts usual values, and returns None for others."""
        if self._mapping.values:
            return {str: {text: value for text, value in self._mapping.values.items() if text}.get}
        return _SHORTCUTS.get((self._convert, self._mapping.cast), {})

    def _read_any(self, message: MessageContext) -> Any:
        """Return the field's value by any mapping."""
        if self._mapping.is_derived:
            value: Any = self._derive_id(message)
        else:
            path, value = next(self._raw_values(message), (None, None))
            if path is not None and path.root != "timestamp":  # the record's time is in ms, whatever the cast is
                value = _convert_value(self.name, value, self._mapping, self._convert, self._zone)
        if value is None:
            value = self._mapping.default
            if value is None:
                if self._is_required:
                    paths = " or ".join(path.text for path in self._mapping.paths)
                    raise InvalidEvent("missing_field", f"{self.name}: no value at {paths}")
                return None
        return f"{value}-{message.index}" if self._has_index else value

    def find_raw_value(self, message: MessageContext) -> Any:
        """Return the first value at the paths, before any conversion; None without a value."""
        return next((value for _, value in self._raw_values(message)), None)

    def _raw_values(self, message: MessageContext) -> Iterator[tuple[Path, Any]]:
        """Yield (path, value) of the paths with a value."""
        for path, getter in zip(self._mapping.paths, self._getters, strict=True):
            value = getter(message)
            if has_value(value):
                yield path, value

    def find_origin(self, message: MessageContext) -> str | None:
        """Return the path of the field's value, or where else the value is from; None without a value."""
        mapping = self._mapping
        filled = [
            path.text for path, getter in zip(mapping.paths, self._getters, strict=True) if has_value(getter(message))
        ]
        if filled:
            return f"hash of {', '.join(filled)}" if mapping.is_derived else filled[0]
        if mapping.default is None:
            return None
        return "default" if mapping.paths else "constant"

    def path_text(self) -> str:
        """Return the paths as they are in the configuration, joined by "or"."""
        return " or ".join(path.text for path in self._mapping.paths) or "constant"

    def _derive_id(self, message: MessageContext) -> str | None:
        """Return the hash of the values at all paths, in hexadecimal digits; None if no path has a value."""
        texts: list[str | None] = []
        for path, getter in zip(self._mapping.paths, self._getters, strict=True):
            value = getter(message)
            text = value_text(value) if has_value(value) else None
            if text is None and has_value(value):
                raise _type_rejection(self.name, value, f"a text, a number or a boolean at {path.text}")
            texts.append(text)
        if not any(texts):
            return None
        # JSON keeps the texts apart, whatever characters they have.
        content = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        return blake2b(content.encode(), digest_size=_DERIVED_ID_BYTES).hexdigest()


Converter = Callable[[str, Any, "str | None", "ZoneInfo | None"], FieldValue]
"""A function (field, value, cast, zone) → value of the field; raises `InvalidEvent`."""


def _convert_value(
    name: str, value: Any, mapping: FieldMapping, convert: Converter, zone: ZoneInfo | None
) -> FieldValue:
    """Return the value of a field for a value of the message, by the value map or else by the converter."""
    values = mapping.values
    if values:
        text = value_text(value)
        mapped = values.get(text, values.get("*")) if text is not None else None
        if mapped is not None:
            return mapped
    try:
        return convert(name, value, mapping.cast, zone)
    except InvalidEvent as error:
        if not values:
            raise
        raise InvalidEvent(error.reason, f"{error.detail}, or a value of the table `values`") from None


def _to_text(name: str, value: Any, cast: str | None, _zone: ZoneInfo | None) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() <= _MAX_INTEGER_BITS:
            return str(value)
        raise _type_rejection(name, value, f"an integer of at most {_MAX_INTEGER_BITS} bits")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes) and (text := _decode_text(value)):
        return text
    if cast == "text" and (text := value_text(value)) is not None:
        return text
    expected = "a string, a number or a boolean" if cast == "text" else "a string or an integer"
    raise _type_rejection(name, value, expected)


def _to_number(name: str, value: Any, cast: str | None, _zone: ZoneInfo | None) -> float:
    if cast == "truthy":
        return float(_to_flag(name, value, cast, None))
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _float(name, value)
    if cast is not None and isinstance(value, str):
        return _float(name, _parse_number(name, value))
    hints = ['`as = "number"` reads texts', '`as = "truthy"` yes and no'][: 2 if name == "score" else 1]
    raise _type_rejection(name, value, "a number" if cast else f"a number; {', '.join(hints)}")


def _to_latency_ms(name: str, value: Any, cast: str | None, zone: ZoneInfo | None) -> float:
    if isinstance(value, timedelta):
        return value / _MILLISECOND
    number = _to_number(name, value, cast, zone)
    return number if cast in (None, "number") else number * float(_UNITS[cast][1])


def _to_flag(name: str, value: Any, cast: str | None, _zone: ZoneInfo | None) -> bool:
    if isinstance(value, bool):
        return value
    if cast == "truthy":
        if isinstance(value, (int, float)) and value in (0, 1):
            return value == 1
        if isinstance(value, str):
            word = value.strip().lower()
            if word in TRUE_WORDS or word in FALSE_WORDS:
                return word in TRUE_WORDS
        raise _type_rejection(
            name, value, "a boolean, 0 or 1, or a word such as yes, no, on, off, up, down; `values` maps others"
        )
    raise _type_rejection(name, value, 'a boolean; `as = "truthy"` reads 0, 1 and words')


def _to_time(name: str, value: Any, cast: str | None, zone: ZoneInfo | None) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            if zone is None:
                expected = 'an offset; declare the zone of local times, as in `as = "iso:Europe/Berlin"`'
                raise InvalidEvent("timestamp_without_offset", f"{name}: expected {expected}")
            value = value.replace(tzinfo=zone)
        return int((value - _EPOCH) // _MILLISECOND)
    if cast is not None and cast in _UNITS:
        return _time_from_unit(name, value, cast)
    if isinstance(value, str):
        return parse_timestamp_ms(value, zone)
    if cast is None and isinstance(value, int) and not isinstance(value, bool):
        return value
    hint = ", or the cast s, ms, us or ns for numbers" if isinstance(value, (int, float, Decimal)) else ""
    raise _type_rejection(name, value, f"a time in ISO 8601{hint}")


def _time_from_unit(name: str, value: Any, cast: str) -> int:
    """Return a number of seconds, milliseconds … as milliseconds, rounded down."""
    unit, unit_ms = _UNITS[cast]
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        raise _type_rejection(name, value, f"a number of {unit}")
    number = _parse_number(name, value) if isinstance(value, str) else Decimal(str(value))
    if not number.is_finite() or not 0 <= number * unit_ms < _MAX_PLAUSIBLE_MS:
        raise InvalidEvent("implausible_timestamp", f"{name}: not a plausible number of {unit}; compare `as`")
    return math.floor(number * unit_ms)


def _parse_number(name: str, text: str) -> Decimal:
    if not _NUMBER.fullmatch(text.strip()):
        raise _type_rejection(name, text, "a number")
    return Decimal(text.strip())


def _float(name: str, value: float | Decimal) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError):  # ValueError: a signaling NaN of Avro
        raise _type_rejection(name, value, "a finite number that fits into 64 bits") from None


def _type_rejection(name: str, value: object, expected: str) -> InvalidEvent:
    return InvalidEvent("wrong_type", f"{name}: got {describe_shape(value)}, expected {expected}")


_CONVERTERS: Final[Mapping[str, Converter]] = {
    "timestamp": _to_time,
    "score": _to_number,
    "latency_ms": _to_latency_ms,
    "withdrawn": _to_flag,
}
"""Field → converter, if the field is not a text."""


def _short_text(value: str) -> str | None:
    return value or None


def _integer_text(value: int) -> str | None:
    return str(value) if value.bit_length() <= _MAX_INTEGER_BITS else None


def _small_number(value: int) -> float | None:
    return float(value) if value.bit_length() <= _MAX_INTEGER_BITS else None


def _seconds_to_ms(value: float) -> int | None:
    """Return seconds with at most three decimals as milliseconds; None for others."""
    if not 0 <= value < _MAX_PLAUSIBLE_S:
        return None
    rounded_ms = round(value * 1000)
    return rounded_ms if rounded_ms / 1000 == value else None


def _instant_to_ms(value: datetime) -> int | None:
    return None if value.tzinfo is None else int((value - _EPOCH) // _MILLISECOND)


_TEXT_SHORTCUTS: Final[Mapping[type, Callable[[Any], Any]]] = {str: _short_text, int: _integer_text}
_NUMBER_SHORTCUTS: Final[Mapping[type, Callable[[Any], Any]]] = {int: _small_number, float: float}
_SHORTCUTS: Final[Mapping[tuple[Converter, str | None], Mapping[type, Callable[[Any], Any]]]] = {
    (_to_text, None): _TEXT_SHORTCUTS,
    (_to_text, "text"): _TEXT_SHORTCUTS,
    (_to_number, None): _NUMBER_SHORTCUTS,
    (_to_number, "number"): _NUMBER_SHORTCUTS,
    (_to_latency_ms, None): _NUMBER_SHORTCUTS,
    (_to_latency_ms, "ms"): _NUMBER_SHORTCUTS,
    (_to_time, None): {datetime: _instant_to_ms},
    (_to_time, "s"): {float: _seconds_to_ms},
}
"""(converter, cast) → type of a value → function that returns the converter's result, or None if it may be another.

The converters need several times as long: they handle and explain values of all types.
"""


class ItemsReader:
    """Reads the ranked list of a response from messages."""

    def __init__(self, mapping: ItemsMapping) -> None:
        self._mapping = mapping
        self._elements = compile_path(mapping.elements)
        self._id_mapping = mapping.item_id
        self._id_getters = [_compile_steps(path.steps) for path in mapping.item_id.paths]
        self._position_getters = (
            None if mapping.position is None else [_compile_steps(path.steps) for path in mapping.position.paths]
        )
        self._offset = 1 - mapping.first_position

    def read(self, message: MessageContext) -> tuple[WireItem, ...]:
        """Return the items; raises `InvalidEvent`."""
        elements = self._elements(message)
        if elements is None and self._mapping.may_be_absent:
            return ()
        if elements is None:
            raise InvalidEvent("missing_field", f"items: no value at {self._mapping.elements.text}")
        if not isinstance(elements, list):
            raise _type_rejection("items", elements, "a list")
        read_id, read_position = self._id_getters[0], None
        if self._position_getters is not None:
            read_position = self._position_getters[0]
        has_values, offset = bool(self._id_mapping.values), self._offset
        items = []
        for index, element in enumerate(elements):
            item_id = read_id(element)
            if type(item_id) is int and item_id.bit_length() <= _MAX_INTEGER_BITS and not has_values:
                item_id = str(item_id)
            elif type(item_id) is not str or not item_id or has_values:
                item_id = self._read_id(element, index)
            if read_position is None:
                items.append(WireItem(item_id, index + 1))
                continue
            position = read_position(element)
            if type(position) is int and 1 <= position + offset <= MAX_POSITION:
                items.append(WireItem(item_id, position + offset))
            else:
                items.append(WireItem(item_id, self._read_position(element, index)))
        return tuple(items)

    def find_origin(self, message: MessageContext) -> str | None:
        """Return the paths of the list and of its elements' values; None without a list."""
        mapping = self._mapping
        if self._elements(message) is None:
            return "default" if mapping.may_be_absent else None
        paths = (mapping.item_id, *(() if mapping.position is None else (mapping.position,)))
        parts = [" or ".join(path.text for path in member.paths) for member in paths]
        return f"{mapping.elements.text}[*]: {', '.join(parts)}"

    def locate(self, member: str, index: int | None, message: MessageContext) -> tuple[str, Any]:
        """Return the path and the value of a member (`item_id` or `position`) of an element, or of the list."""
        mapping = self._mapping
        elements = self._elements(message)
        if index is None or not isinstance(elements, list) or not index < len(elements):
            return mapping.elements.text, elements
        path = f"{mapping.elements.text}[*]"
        field = mapping.position if member == "position" else mapping.item_id if member == "item_id" else None
        if field is None:
            return path, elements[index]
        values = [_walk(elements[index], member_path.steps) for member_path in field.paths]
        names = " or ".join(member_path.text for member_path in field.paths)
        return f"{path}: {names}", next((value for value in values if value is not None), None)

    def _read_id(self, element: Any, index: int) -> str:
        mapping = self._id_mapping
        for getter in self._id_getters:
            value = getter(element)
            if has_value(value):
                return str(_convert_value(f"items[{index}].item_id", value, mapping, _to_text, None))
        paths = " or ".join(path.text for path in mapping.paths)
        raise InvalidEvent("missing_field", f"items[{index}].item_id: no value at {paths}")

    def _read_position(self, element: Any, index: int) -> int:
        for getter in self._position_getters or ():
            value = getter(element)
            if not has_value(value):
                continue
            if type(value) is not int:
                value = _whole_number(f"items[{index}].position", value)
            position = value + self._offset
            if not 1 <= position <= MAX_POSITION:
                first_position = self._mapping.first_position
                hint = "; set base = 0 if the first position is 0" if first_position == 1 and value == 0 else ""
                expected = f"{first_position} to {MAX_POSITION - 1 + first_position}{hint}"
                raise InvalidEvent(
                    "invalid_position", f"items[{index}].position: {_number_text(value)}, expected {expected}"
                )
            return position
        raise InvalidEvent("missing_field", f"items[{index}].position: expected in every item")


def _number_text(value: int) -> str:
    """Return a small integer; a large one may be an id."""
    return str(value) if abs(value) <= _MAX_SHOWN_NUMBER else describe_shape(value)


def _whole_number(name: str, value: Any) -> int:
    is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value % 1 != 0:
        raise _type_rejection(name, value, "an integer")
    return int(value)


class EventMapper:
    """Maps the messages of a source to responses or to feedback."""

    def __init__(self, source: SourceSettings, attributes: Sequence[str] = ()) -> None:
        """`attributes` are the attributes of responses to read; those without a path have no value."""
        self._source = source
        self._elements = None if source.elements is None else compile_path(source.elements)
        own_id = f"{source.event_type}_id"
        required_fields, _ = event_fields(source.event_type)
        self.readers = {
            name: FieldReader(
                name,
                mapping,
                # Feedback without a declared score has the score 1. A declared score that is absent is unknown.
                is_required=name in required_fields or name == "score",
                has_index=name == own_id
                and self._elements is not None
                and not any(path.depends_on_element for path in mapping.paths),
            )
            for name, mapping in source.fields.items()
        }
        self._event_class = WireResponse if source.event_type == "response" else WireFeedback
        reads: dict[str, Getter] = {name: reader.read for name, reader in self.readers.items()}
        self._items = None if source.items is None else ItemsReader(source.items)
        if self._items is not None:
            reads["items"] = self._items.read
        self._reads = [
            _with_default(reads.get(field.name, _read_no_value), field.default)
            for field in msgspec.structs.fields(self._event_class)
        ]
        """A function for each field of the event, in the order of the fields."""
        self._attribute_readers = [
            (name, FieldReader(name, mapping, is_required=False))
            for name, mapping in _attribute_mappings(source, attributes)
        ]
        self._message_filters, self._element_filters = (
            [
                (compile_path(condition.path), condition.values)
                for condition in source.filters
                if condition.path.depends_on_element == is_element_filter
            ]
            for is_element_filter in (False, True)
        )
        self._metadata_filters = [
            (compile_path(condition.path), condition.values)
            for condition in source.filters
            if condition.path.root not in ("value", "element", "index")
        ]

    def passes_filters(self, message: MessageContext) -> bool:
        """Return whether a message passes the filters that do not depend on its elements."""
        return _passes(message, self._message_filters)

    def passes_metadata_filters(self, message: MessageContext) -> bool:
        """Return whether a message passes the filters that do not depend on its fields, such as those on headers."""
        return _passes(message, self._metadata_filters)

    def select_elements(self, message: MessageContext) -> list[MessageContext]:
        """Return a context for each element of `each` that passes the filters; the message itself without `each`."""
        if self._elements is None:
            return [message]
        elements = self._elements(message)
        if not isinstance(elements, list):
            path = self._source.elements.text if self._source.elements else ""
            problem = "no value" if elements is None else f"got {describe_shape(elements)}"
            raise InvalidEvent("wrong_type", f"each: {problem} at {path}, expected a list")
        contexts = []
        for index, element in enumerate(elements):
            context = MessageContext(
                message.fields, message.envelope, message.headers, message.key, message.timestamp, message.topic,
                message.partition, message.offset,
            )  # fmt: skip
            context.element, context.index = element, index
            if _passes(context, self._element_filters):
                contexts.append(context)
        return contexts

    def find_failed_filter(self, message: MessageContext) -> str | None:
        """Return the path of the first filter that a message does not pass; None if only elements are filtered."""
        for condition in self._source.filters:
            is_element_filter = condition.path.depends_on_element
            if not is_element_filter and not _passes(message, [(compile_path(condition.path), condition.values)]):
                return condition.path.text
        return None

    def read_attributes(self, message: MessageContext) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of the attributes with a value in a message or in its element; raises `InvalidEvent`."""
        pairs = ((name, reader.read(message)) for name, reader in self._attribute_readers)
        return tuple((name, value) for name, value in pairs if value is not None)

    def find_origins(self, message: MessageContext) -> dict[str, str | None]:
        """Return field → path of its value in a message or in its element; None for a field without a value."""
        readers = {**self.readers, **dict(self._attribute_readers)}
        origins = {name: reader.find_origin(message) for name, reader in readers.items()}
        if self._items is not None:
            origins["items"] = self._items.find_origin(message)
        return origins

    def locate(self, field: str, index: int | None, message: MessageContext) -> tuple[str, Any] | None:
        """Return the path and the value of a field, such as `items[3].position` (index 3); None for another name."""
        if field == "each" and self._elements is not None and self._source.elements is not None:
            return self._source.elements.text, self._elements(message)
        if field.startswith("items") and self._items is not None:
            return self._items.locate(field.rpartition(".")[2], index, message)
        reader = {**self.readers, **dict(self._attribute_readers)}.get(field)
        return None if reader is None else (reader.path_text(), reader.find_raw_value(message))

    def map_event(self, message: MessageContext) -> WireResponse | WireFeedback:
        """Return the event of a message or of its element; raises `InvalidEvent`."""
        return self._event_class(*[read(message) for read in self._reads])


def _attribute_mappings(source: SourceSettings, attributes: Sequence[str]) -> Iterator[tuple[str, FieldMapping]]:
    """Yield (name, mapping) of the attributes that a source has; without a table of fields, a name is the path."""
    if source.event_type == "response":
        prefix = "" if source.elements is None else "$element."
        for name in attributes:
            if source.attributes is None:
                yield name, FieldMapping((parse_path(prefix + name),), cast="text")
            elif name in source.attributes:
                yield name, source.attributes[name]


def _with_default(read: Getter, default: Any) -> Getter:
    """Return a function that returns the default of an optional field instead of None."""
    if default in {None, msgspec.NODEFAULT}:
        return read

    def read_or_default(message: MessageContext) -> Any:
        value = read(message)
        return default if value is None else value

    return read_or_default


def _passes(message: MessageContext, filters: Sequence[tuple[Getter, frozenset[str] | None]]) -> bool:
    for getter, allowed in filters:
        value = getter(message)
        passes = has_value(value) if allowed is None else value_text(value) in allowed
        if not passes:
            return False
    return True
