"""The decoder of messages: bytes → `Response` or `Feedback`, or an exception with the reason of the rejection.

msgspec decodes the message into a struct of the schema. The decoder then checks the rules that a schema cannot express.
If msgspec fails, the message is parsed again without a schema, to unwrap a CloudEvents envelope or to find the reason
of the rejection.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from monitor.config import Settings
from monitor.engine.attributes import AttributeReader
from monitor.errors import InvalidEvent
from monitor.events import (
    MAX_KIND_LENGTH,
    MAX_LATENCY_MS,
    MAX_POSITION,
    Feedback,
    Response,
    WireFeedback,
    WireResponse,
    parse_timestamp_ms,
)

ResponseArm: TypeAlias = "tuple[str, str, int | None]"
"""(name of the experiment, name of the variant, event time in ms or None)."""

Schema = TypeVar("Schema", WireResponse, WireFeedback)

_parse_response: Final = msgspec.json.Decoder(WireResponse).decode
_parse_feedback: Final = msgspec.json.Decoder(WireFeedback).decode
_parse_json: Final = msgspec.json.Decoder().decode
_FEEDBACK_FIELDS: Final = frozenset({"kind", "score", "item_id"})
_RESPONSE_FIELDS: Final = frozenset({"experiment", "variant", "items"})
_TYPE_NAME: Final = re.compile(r"`([^`]+)`")
_JSON_TYPES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_MILLISECONDS_FROM: Final = 10**12
_MILLISECONDS_END: Final = 10**15
_MAX_SHOWN_NUMBER: Final = 10**15
_TIME_UNITS: Final = (
    (10**9, _MILLISECONDS_FROM, "seconds"),
    (_MILLISECONDS_END, 10**18, "microseconds"),
    (10**18, 10**21, "nanoseconds"),
)
"""(first, end, unit): integers that are times from 2001 on in a unit other than milliseconds."""
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventDecoder:
    """Decodes messages within the limits and the score scales of the settings."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self._max_bytes = limits.max_payload_bytes
        self._max_items = limits.max_items
        self._max_id_length = limits.max_id_length
        self._max_skew_ms = limits.max_clock_skew_ms
        self._oldest_ms = limits.oldest_timestamp_ms
        self._placeholder_ids = limits.placeholder_ids
        self._attributes = AttributeReader(settings.attributes)
        self._unit_fields = {experiment.unit_field for experiment in settings.experiments}
        self._uses_sessions = any(experiment.uses_sessions for experiment in settings.experiments)
        self._rejects_repeated_items = limits.repeated_items == "reject"
        # Feedback does not name its experiment, so a score is rejected only if it is outside the scale of every
        # experiment. A kind that some experiment does not grade by its score has no scale there.
        kinds = {kind for experiment in settings.experiments for kind in experiment.grades}
        self._max_scores = {
            kind: max(experiment.max_grade for experiment in settings.experiments)
            for kind in kinds
            if all(experiment.grades.get(kind) == "score" for experiment in settings.experiments)
        }

    def decode_response(self, payload: bytes | None, now_ms: int) -> Response:
        """Return the response in a message; raises `InvalidEvent`."""
        content = self.check_size(payload)
        try:
            message = _parse_response(content)
        except _DECODE_ERRORS:
            return self._validate_response_fields(_event_fields(content), now_ms)
        return self.validate_response(message, now_ms, self._attributes.read_message(content))

    def decode_feedback(self, payload: bytes | None, now_ms: int) -> Feedback:
        """Return the feedback in a message; raises `InvalidEvent`."""
        content = self.check_size(payload)
        try:
            message = _parse_feedback(content)
        except _DECODE_ERRORS:
            message = _convert_fields(_event_fields(content), WireFeedback)
        return self.validate_feedback(message, now_ms)

    def decode_event(self, payload: bytes | None, now_ms: int) -> Response | Feedback:
        """Return the event in a message, which is feedback if the event has a feedback_id; raises `InvalidEvent`.

        An event with fields of feedback only is feedback that lacks its feedback_id.
        """
        content = self.check_size(payload)
        try:
            return self.validate_feedback(_parse_feedback(content), now_ms)
        except _DECODE_ERRORS:
            pass
        try:
            message = _parse_response(content)
        except _DECODE_ERRORS:
            fields = _event_fields(content)
            if "feedback_id" in fields or (fields.keys() & _FEEDBACK_FIELDS and not fields.keys() & _RESPONSE_FIELDS):
                return self.validate_feedback(_convert_fields(fields, WireFeedback), now_ms)
            return self._validate_response_fields(fields, now_ms)
        return self.validate_response(message, now_ms, self._attributes.read_message(content))

    def _validate_response_fields(self, fields: dict[str, Any], now_ms: int) -> Response:
        message = _convert_fields(fields, WireResponse)
        return self.validate_response(message, now_ms, self._attributes.read_fields(fields))

    def read_response_arm(self, payload: bytes | None, now_ms: int) -> ResponseArm | None:
        """Return (experiment, variant, event time or None) of a rejected response; None if a name cannot be read.

        Messages above the size limit are read, too: one variant may have more of them.
        """
        try:
            fields = _event_fields(payload or b"")
        except InvalidEvent:
            return None
        if "feedback_id" in fields:
            return None
        return self.response_arm(fields.get("experiment"), fields.get("variant"), fields.get("timestamp"), now_ms)

    def response_arm(self, experiment: object, variant: object, timestamp: object, now_ms: int) -> ResponseArm | None:
        """Return (experiment, variant, event time or None) of a response; None if a name is no text."""
        if not isinstance(experiment, str) or not isinstance(variant, str):
            return None
        timestamp_ms = None
        if isinstance(timestamp, (str, int)):
            with suppress(InvalidEvent):
                timestamp_ms = self._event_time_ms(timestamp, now_ms)
        return experiment, variant, timestamp_ms

    def check_size(self, payload: bytes | None) -> bytes:
        """Return the content of a message; raises `InvalidEvent` for an empty or too large one."""
        if not payload:
            raise InvalidEvent("empty_payload", "expected a JSON object")
        if len(payload) > self._max_bytes:
            raise InvalidEvent("payload_too_large", f"{len(payload)} bytes, expected at most {self._max_bytes}")
        return payload

    def validate_response(
        self, message: WireResponse, now_ms: int, attributes: tuple[tuple[str, str], ...] = ()
    ) -> Response:
        """Return the response with the fields and the attributes of a message; raises `InvalidEvent`."""
        items = message.items
        if len(items) > self._max_items:
            raise InvalidEvent("list_too_long", f"items: {len(items)}, expected at most {self._max_items}")
        ids = tuple([item.item_id for item in items])
        positions = [item.position for item in items]
        has_repeated_items = len(set(ids)) != len(ids)
        if has_repeated_items:
            if self._rejects_repeated_items:
                raise InvalidEvent("repeated_item", "items: expected each item_id once")
            ids, positions = _smallest_positions(ids, positions)
        ranks = None if positions == [*range(1, len(ids) + 1)] else tuple(positions)
        if ranks is not None and len(set(ranks)) != len(ranks):
            raise InvalidEvent("repeated_position", "items: expected each position once")
        self._check_response_id(message.response_id)
        user_id = self._find_user_id(message.user_id)
        self._check_id("query_id", message.query_id)
        self._check_id("group_id", message.group_id)
        for item_id in ids:
            # The length is compared here, because a call per item would take as long as all other checks together.
            if len(item_id) > self._max_id_length:
                self._check_id("item_id", item_id)
        latency_ms = message.latency_ms
        if latency_ms is not None and not 0 <= latency_ms <= MAX_LATENCY_MS:
            raise _latency_rejection(latency_ms)
        return Response(
            message.response_id,
            self._event_time_ms(message.timestamp, now_ms),
            message.experiment,
            message.variant,
            ids,
            ranks,
            user_id,
            message.query_id,
            message.category,
            latency_ms,
            None if message.group_id is None or self._is_placeholder(message.group_id) else message.group_id,
            user_id is None and message.user_id is not None,
            has_repeated_items,
            self._find_session_id(message.session_id),
            self._without_placeholder_units(attributes) if attributes else (),
        )

    def _without_placeholder_units(self, attributes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return the attributes without those that name a unit by a placeholder instead of an id."""
        return tuple(
            [pair for pair in attributes if pair[0] not in self._unit_fields or not self._is_placeholder(pair[1])]
        )

    def validate_feedback(self, message: WireFeedback, now_ms: int) -> Feedback:
        """Return the feedback with the fields of a message; raises `InvalidEvent`."""
        kind, score = message.kind, message.score
        if len(kind) > MAX_KIND_LENGTH or kind[0] == "+" or not kind.isprintable():
            raise InvalidEvent(
                "invalid_kind", f"kind: expected 1 to {MAX_KIND_LENGTH} printable characters, the first not +"
            )
        if not 0 <= score < math.inf:
            raise InvalidEvent("invalid_score", f"score: {_number_text(score)}expected a finite number from 0")
        scale = self._max_scores.get(kind)
        if scale is not None and score > scale:
            raise InvalidEvent(
                "score_out_of_scale", f"score: {_number_text(score)}expected 0 to {scale:g} for this kind"
            )
        self._check_id("feedback_id", message.feedback_id)
        self._check_response_id(message.response_id)
        self._check_id("item_id", message.item_id)
        return Feedback(
            message.feedback_id,
            message.response_id,
            self._event_time_ms(message.timestamp, now_ms),
            kind,
            self._find_user_id(message.user_id),
            message.item_id,
            score,
            message.withdrawn,
        )

    def _event_time_ms(self, timestamp: str | int, now_ms: int) -> int:
        if isinstance(timestamp, int) and (unit := _other_time_unit(timestamp)):
            raise InvalidEvent(
                "implausible_timestamp", f"timestamp: {timestamp} looks like {unit}, expected milliseconds since 1970"
            )
        event_time_ms = parse_timestamp_ms(timestamp)
        if event_time_ms < self._oldest_ms:
            raise InvalidEvent(
                "implausible_timestamp",
                f"timestamp: {_format_instant(event_time_ms)}, expected limits.oldest_timestamp, "
                f"{_format_instant(self._oldest_ms)}, or later",
            )
        if event_time_ms > now_ms + self._max_skew_ms:
            ahead_s = (event_time_ms - now_ms) / 1000
            raise InvalidEvent("timestamp_in_future", f"timestamp: {ahead_s:.0f} s ahead of this machine's clock")
        return event_time_ms

    def _find_user_id(self, user_id: str | None) -> str | None:
        """Return the user id of a message; None if the message has none, or a placeholder."""
        if user_id is None or self._is_placeholder(user_id):
            return None
        if not user_id:
            raise _short_text_rejection("user_id")
        self._check_id("user_id", user_id)
        return user_id

    def _is_placeholder(self, text: str) -> bool:
        return text.lower() in self._placeholder_ids

    def _find_session_id(self, session_id: Any) -> str | None:
        """Return the session id of a message; None without one, or if no experiment counts sessions."""
        if session_id is None or not self._uses_sessions:
            return None
        if not isinstance(session_id, str):
            raise InvalidEvent("wrong_type", "session_id: expected a string or null")
        if not session_id:
            raise _short_text_rejection("session_id")
        self._check_id("session_id", session_id)
        return session_id

    def _check_response_id(self, response_id: str) -> None:
        if self._is_placeholder(response_id):
            raise InvalidEvent(
                "placeholder_id", f'response_id: "{response_id}", expected a unique id instead of a placeholder'
            )
        self._check_id("response_id", response_id)

    def _check_id(self, name: str, value: str | None) -> None:
        if value is not None and len(value) > self._max_id_length:
            raise InvalidEvent("invalid_id", f"{name}: {len(value)} characters, expected at most {self._max_id_length}")


def _smallest_positions(ids: tuple[str, ...], positions: list[int]) -> tuple[tuple[str, ...], list[int]]:
    """Return the distinct item ids in the order of the list, and the smallest position of each.

    Other items keep their positions, so a dropped repetition leaves a gap. Raises `InvalidEvent` if two different items
    have the same position, even where one of the two is a dropped repetition.

    >>> _smallest_positions(("A", "B", "A", "C"), [1, 2, 3, 4])
    (('A', 'B', 'C'), [1, 2, 4])
    """
    smallest_positions: dict[str, int] = {}
    ids_by_position: dict[int, str] = {}
    for item_id, position in zip(ids, positions, strict=True):
        if ids_by_position.setdefault(position, item_id) != item_id:
            raise InvalidEvent("repeated_position", "items: expected each position once")
        smallest_positions[item_id] = min(position, smallest_positions.get(item_id, position))
    return tuple(smallest_positions), list(smallest_positions.values())


def _event_fields(payload: bytes) -> dict[str, Any]:
    """Return the fields of the event in a message; a CloudEvents 1.0 envelope (structured mode) is removed."""
    fields = _json_object(payload)
    if not (isinstance(fields.get("specversion"), str) and ("data" in fields or "data_base64" in fields)):
        return fields
    if not fields["specversion"].startswith("1."):
        raise InvalidEvent("invalid_envelope", "specversion: expected 1.0")
    data = fields.get("data")
    if data is None and "data_base64" in fields:
        try:
            data = _json_object(b64decode(fields["data_base64"], validate=True))
        except (TypeError, ValueError):
            raise InvalidEvent("invalid_envelope", "data_base64: expected an event as JSON in base64") from None
    if not isinstance(data, dict):
        raise InvalidEvent("invalid_envelope", "data: expected an object")
    return data


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        value = _parse_json(payload)
    except _DECODE_ERRORS:
        raise InvalidEvent("invalid_json", "expected a JSON object in UTF-8") from None
    if not isinstance(value, dict):
        raise InvalidEvent("not_an_object", "expected a JSON object")
    return value


def _convert_fields(fields: dict[str, Any], schema: type[Schema]) -> Schema:
    """Return the struct of an event's fields; raises `InvalidEvent` for the first field that violates the schema."""
    try:
        return msgspec.convert(fields, schema)
    except msgspec.ValidationError as error:
        message = str(error)
    for field in msgspec.structs.fields(schema):
        if field.required and field.name not in fields:
            raise InvalidEvent("missing_field", f"{field.name}: expected in every {schema.__name__[4:].lower()}")
    for field in msgspec.structs.fields(schema):
        if field.name in fields and field.name != "items":
            try:
                msgspec.convert(fields[field.name], field.type)
            except msgspec.ValidationError as error:
                raise _field_rejection(field.name, fields[field.name], str(error)) from None
    _check_items(fields.get("items", ()))
    raise InvalidEvent("wrong_type", _in_json_words(message))


def _field_rejection(name: str, value: object, message: str) -> InvalidEvent:
    if name == "latency_ms":
        return _latency_rejection(value)
    if "length" in message:
        reason = "invalid_kind" if name == "kind" else "invalid_id"
        return _short_text_rejection(name, reason)
    return InvalidEvent("wrong_type", f"{name}: {_in_json_words(message)}")


def _short_text_rejection(name: str, reason: str = "invalid_id") -> InvalidEvent:
    return InvalidEvent(reason, f"{name}: expected at least 1 character")


def _in_json_words(message: str) -> str:
    """Return the message of a `msgspec.ValidationError` with the names of JSON types.

    >>> _in_json_words("Expected `str | null`, got `int`")
    'expected a string or null, got an integer'
    """
    words = _TYPE_NAME.sub(
        lambda match: " or ".join(_JSON_TYPES.get(name, name) for name in match[1].split(" | ")), message
    )
    return words[:1].lower() + words[1:]


def _other_time_unit(timestamp: int) -> str:
    """Return the unit of an integer that is a plausible time in another unit than milliseconds, otherwise ""."""
    if _MILLISECONDS_FROM <= timestamp < _MILLISECONDS_END:
        return ""
    return next((unit for first, end, unit in _TIME_UNITS if first <= timestamp < end), "")


def _format_instant(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _check_items(items: object) -> None:
    """Raise the `InvalidEvent` of the first item that does not fit the schema."""
    if not isinstance(items, (list, tuple)):
        raise InvalidEvent("wrong_type", "items: expected a list")
    for index, item in enumerate(items):
        path = f"items[{index}]"
        if not isinstance(item, dict):
            raise InvalidEvent("wrong_type", f"{path}: expected an object")
        for name in ("item_id", "position"):
            if name not in item:
                raise InvalidEvent("missing_field", f"{path}.{name}: expected in every item")
        if not isinstance(item["item_id"], str):
            raise InvalidEvent("wrong_type", f"{path}.item_id: expected a string")
        if not item["item_id"]:
            raise InvalidEvent("invalid_id", f"{path}.item_id: expected at least 1 character")
        position = item["position"]
        if isinstance(position, bool) or not isinstance(position, int):
            raise InvalidEvent("wrong_type", f"{path}.position: expected an integer")
        if not 1 <= position <= MAX_POSITION:
            raise InvalidEvent(
                "invalid_position", f"{path}.position: {_number_text(position)}expected 1 to {MAX_POSITION}"
            )


def _latency_rejection(latency_ms: object) -> InvalidEvent:
    return InvalidEvent("invalid_latency", f"latency_ms: {_number_text(latency_ms)}expected 0 to {MAX_LATENCY_MS}")


def _number_text(value: object) -> str:
    """Return a number for a message, with a comma; empty for a text, which may be a student's, and for long numbers.

    >>> _number_text(4.5), _number_text("slow"), _number_text(10**30)
    ('4.5, ', '', '')
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_SHOWN_NUMBER:
        return f"{value:.15g}, "
    return ""
