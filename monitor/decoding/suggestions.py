"""Guesses of a mapping: paths of sampled messages whose names and values fit the fields of an event."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from difflib import SequenceMatcher
from statistics import median
from typing import Any, Final
from uuid import UUID

from monitor.config import EventType, event_fields, member_text
from monitor.decoding.mapping import FALSE_WORDS, TRUE_WORDS, MessageContext
from monitor.errors import InvalidEvent
from monitor.events import parse_timestamp_ms

_SYNONYMS: Final[Mapping[EventType, Mapping[str, str]]] = {
    "response": {
        "response_id": "answer_id message_id trace_id request_id completion_id generation_id result_id query_id id",
        "timestamp": "ts time event_time occurred_at created_at asked_at answered_at sent_at created at date "
        "start_time timestamp_ms ts_ms time_ms time_unix_nano",
        "experiment": "experiment_id experiment_name exp exp_id ab_test test test_name flag_key feature_flag flag "
        "campaign",
        "variant": "variant_id variant_name arm bucket variation group treatment cohort branch ranker",
        "items": "hits results documents docs videos recommendations ranking products answers sources hit_ids "
        "query_response_hit_ids item_ids doc_ids video_ids",
        "user_id": "user student_id student uid customer_id client_id account_id distinct_id visitor_id subject_id",
        "query_id": "question_id search_id",
        "category": "topic subject intent domain",
        "latency_ms": "latency duration_ms elapsed_ms took_ms response_time_ms took",
        "group_id": "class_id school_id team_id tenant_id",
        "session_id": "session conversation_id chat_id dialog_id thread_id",
    },
    "feedback": {
        "feedback_id": "event_id rating_id score_id reaction_id click_id uuid id",
        "response_id": "answer_id message_id trace_id request_id completion_id generation_id result_id query_id "
        "parent_id",
        "timestamp": "ts time event_time occurred_at created_at clicked_at rated_at sent_at created at date "
        "timestamp_ms ts_ms time_ms time_unix_nano",
        "kind": "evaluation_name score_name type event_type action action_name feedback_type reaction event event_name "
        "name label",
        "user_id": "user student_id student uid customer_id client_id account_id distinct_id visitor_id subject_id",
        "item_id": "doc_id document_id video_id object_id content_id product_id hit_id doc item video document",
        "score": "rating value stars grade points vote thumb thumbs",
        "withdrawn": "removed undone retracted",
    },
}
"""Event type → field → names that producers use for the field, the most probable one first."""
_CLEAR_ITEM_ID_NAMES: Final = "item_id doc_id document_id video_id object_id content_id product_id hit_id"
_ITEM_ID_NAMES: Final = f"{_CLEAR_ITEM_ID_NAMES} id key"
_UNNAMED_LIST: Final = (4, 0)
"""Rank of a list that only the names of its elements' members show to be a list of items."""
_POSITION_NAMES: Final = "position rank pos ordinal index idx"
_TRANSPARENT_NAMES: Final = frozenset(
    {"value", "string", "stringvalue", "intvalue", "doublevalue", "boolvalue", "text"}
)
"""Names of members that only contain the value of their parent, as in OpenTelemetry's attributes."""
_LOOKUP_KEYS: Final = ("key", "name")
_MAX_DEPTH: Final = 8
_MAX_PATHS: Final = 2000
_MIN_COVERAGE: Final = 0.5
"""Least share of the messages that have a value at a suggested path."""
_NAMING_FIELDS: Final = frozenset({"experiment", "variant", "kind", "category"})
_MIN_NAMES: Final = 5
_MIN_SIMILARITY: Final = 0.85
"""For misspelt names, on the scale of `difflib`; a user_query is no query_id."""
_MAX_ID_LENGTH: Final = 256
_MAX_WORDS: Final = 3
_MAX_NAMES: Final = 50
"""Largest number of distinct values of these fields; in a small sample, half of the values, but at least five."""
_UNIT_ENDS: Final = ((10.0**11, "s"), (10.0**14, "ms"), (10.0**17, "us"), (10.0**20, "ns"))
_FIRST_SECOND: Final = 10.0**9
_NUMBER: Final = re.compile(r"\d{9,20}(\.\d+)?")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True)
class PathValues:
    """The values at a path of the sampled messages."""

    names: tuple[str, ...]
    """Names of the members on the path, without the transparent ones."""
    values: list[Any] = field(default_factory=list)


def collect_paths(messages: Sequence[MessageContext]) -> dict[str, PathValues]:
    """Return path → values for all values in messages, their envelopes, headers and keys."""
    paths: dict[str, PathValues] = {}

    def add(path: str, names: tuple[str, ...], value: Any) -> None:
        if value is not None and value != "" and (path in paths or len(paths) < _MAX_PATHS):
            paths.setdefault(path, PathValues(names)).values.append(value)

    for message in messages:
        for path, names, value in _walk_members(message.fields, "", ()):
            add(path, names, value)
        for path, names, value in _walk_members(message.envelope, "$envelope", ()):
            add(path, names, value)
        for name, content in message.headers:
            if content is not None and not name.startswith(("__", "ce_")):
                add(f"$headers.{member_text(name)}", (name,), content.decode(errors="replace"))
    return paths


def _walk_members(
    value: Mapping[str, Any], prefix: str, names: tuple[str, ...], depth: int = 0
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield (path, names, value) for scalars and lists."""
    for name, member in value.items():
        path = f"{prefix}.{member_text(name)}" if prefix else member_text(name)
        is_transparent = bool(names) and _plain(name) in _TRANSPARENT_NAMES
        member_names = names if is_transparent else (*names, name)
        if isinstance(member, dict):
            if depth < _MAX_DEPTH:
                yield from _walk_members(member, path, member_names, depth + 1)
            continue
        yield path, member_names, member
        if isinstance(member, list) and depth < _MAX_DEPTH:
            yield from _walk_pairs(member, path, member_names, depth + 1)


def _walk_pairs(
    elements: list[Any], path: str, names: tuple[str, ...], depth: int
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the values of a list of pairs, such as `[{"key": "session", "value": "x"}]`."""
    for key in _LOOKUP_KEYS:
        if all(
            isinstance(element, dict) and "value" in element and isinstance(element.get(key), str)
            for element in elements
        ):
            for element in elements:
                prefix = f"{path}[{key}={json.dumps(element[key], ensure_ascii=False)}]"
                yield from _walk_members({"value": element["value"]}, prefix, (*names, element[key]), depth)
            return


def suggest_fields(event_type: EventType, messages: Sequence[MessageContext]) -> dict[str, str]:
    """Return field → value in TOML for the fields whose values the messages seem to have.

    The value is that of a key in `[kafka.sources.fields]`.
    """
    suggestions: dict[str, str] = {}
    used_paths: set[str] = set()
    for *_, path, name, text in sorted(_find_candidates(event_type, messages)):
        if name not in suggestions and path not in used_paths:
            suggestions[name] = text
            used_paths.add(path)
    if messages and "timestamp" not in suggestions and all((message.timestamp or -1) >= 0 for message in messages):
        suggestions["timestamp"] = '{ from = "$timestamp", as = "ms" }'
    if "user_id" not in suggestions and any(message.key for message in messages):
        suggestions["user_id"] = '"$key"'
    if event_type == "feedback" and "feedback_id" not in suggestions and "response_id" in suggestions:
        parts = [suggestions[name] for name in ("response_id", "item_id", "kind", "timestamp") if name in suggestions]
        suggestions["feedback_id"] = f"{{ derive = [{', '.join(map(_path_in, parts))}] }}"
    required, optional = event_fields(event_type)
    return {name: suggestions[name] for name in (*required, *optional) if name in suggestions}


def _find_candidates(
    event_type: EventType, messages: Sequence[MessageContext]
) -> Iterator[tuple[bool, tuple[int, int], bool, int, int, str, str, str]]:
    """Yield (is optional, rank of the name, is metadata, depth, number of the field, path, field, TOML).

    The least one fits best. Required fields come first: a query_id is the response_id if nothing else is.
    """
    required, optional = event_fields(event_type)
    for path, path_values in collect_paths(messages).items():
        if len(path_values.values) < _MIN_COVERAGE * len(messages):
            continue
        for number, name in enumerate((*required, *optional)):
            synonyms = [name, *_SYNONYMS[event_type].get(name, "").split()]
            rank = _rank_names(path_values.names, synonyms)
            text = None if rank is None else _describe_value(name, path, path_values.values)
            if rank is None and name == "items":
                rank = _UNNAMED_LIST
                text = _describe_items(path, path_values.values, _CLEAR_ITEM_ID_NAMES)
            if rank is not None and text is not None:
                is_metadata, depth = path.startswith("$"), len(path_values.names)
                yield name in optional, rank, is_metadata, depth, number, path, name, text


def _path_in(value: str) -> str:
    """Return the path, as a string of TOML, in the TOML of a field."""
    mapping = tomllib.loads(f"mapping = {value}")["mapping"]
    return toml_string(mapping["from"] if isinstance(mapping, dict) else mapping)


def _rank_names(names: Sequence[str], synonyms: Sequence[str]) -> tuple[int, int] | None:
    """Return how well the names of a path fit a field, (0, 0) for the field's own name; None if they do not."""
    if not names:
        return None
    # Names with dots, such as gen_ai.response.id, are paths of their own.
    parts = [part for name in names for part in name.split(".") if part] or [*names]
    leaf = _plain(parts[-1])
    joined = _plain("".join(parts[-2:]))
    plain_synonyms = [_plain(synonym) for synonym in synonyms]
    for index, synonym in enumerate(plain_synonyms):
        if synonym in (leaf, joined):
            return (0 if index == 0 else 1), index
    words = _words(parts[-1])
    for index, synonym in enumerate(synonyms):
        synonym_words = _words(synonym)
        if len(synonym_words) > 1 and words[-len(synonym_words) :] == synonym_words:
            return 2, index
    if SequenceMatcher(None, leaf, plain_synonyms[0]).ratio() >= _MIN_SIMILARITY:
        return 3, 0
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", _CAMEL.sub("_", name).lower()) if word]


def _describe_value(name: str, path: str, values: Sequence[Any]) -> str | None:
    """Return the value of a field's key in TOML, None if the values at the path do not fit the field."""
    if name == "items":
        return _describe_items(path, values, _ITEM_ID_NAMES)
    cast: str | None
    if name == "timestamp":
        cast = find_time_cast(values)
    elif name in ("score", "latency_ms"):
        cast = "" if all(map(_is_number, values)) else "number" if all(map(_is_numeric_text, values)) else None
        if cast is None and name == "score" and all(map(_is_vote, values)):
            cast = "truthy"
    elif name == "withdrawn":
        cast = "" if all(isinstance(value, bool) for value in values) else None
    else:
        max_names = max(_MIN_NAMES, min(_MAX_NAMES, len(values) // 2)) if name in _NAMING_FIELDS else len(values)
        cast = "" if all(map(_is_text, values)) and len({str(value) for value in values}) <= max_names else None
    return None if cast is None else _with_cast(toml_string(path), cast)


def _with_cast(text: str, cast: str) -> str:
    return f'{{ from = {text}, as = "{cast}" }}' if cast else text


def _describe_items(path: str, values: Sequence[Any], id_names: str) -> str | None:
    """Return the items in TOML, None if the values are no lists of ids or of objects with an id of these names."""
    lists = [value for value in values if isinstance(value, list)]
    elements = [element for value in lists for element in value]
    if len(lists) < len(values) or not elements:
        return None
    if all(_is_text(element) for element in elements) and id_names == _ITEM_ID_NAMES:
        return toml_string(path)
    if not all(isinstance(element, dict) for element in elements):
        return None
    members: dict[str, PathValues] = {}
    for element in elements:
        for member_path, names, value in _walk_members(element, "", ()):
            if value is not None:
                members.setdefault(member_path, PathValues(names)).values.append(value)
    item_id = _find_member(members, id_names, len(elements), _is_text)
    if item_id is None:
        return None
    parts = [f"each = {toml_string(path)}", f"item_id = {toml_string(item_id)}"]
    position = _find_member(members, _POSITION_NAMES, len(elements), _is_integer)
    if position is not None:
        parts.append(f"position = {toml_string(position)}")
        if min(members[position].values) == 0:
            parts.append("base = 0")
    return f"{{ {', '.join(parts)} }}"


def _find_member(
    members: Mapping[str, PathValues], names: str, count: int, is_usable: Callable[[Any], bool]
) -> str | None:
    """Return the path of the member of most elements whose name fits best."""
    ranked = [
        (rank, len(member.names), path)
        for path, member in members.items()
        if len(member.values) >= _MIN_COVERAGE * count
        and all(map(is_usable, member.values))
        and (rank := _rank_names(member.names, names.split())) is not None
    ]
    return min(ranked)[2] if ranked else None


def find_time_cast(values: Sequence[Any]) -> str | None:
    """Return the cast that reads the values as times, "" if none is needed; None if they are no times.

    >>> find_time_cast([1795712348]), find_time_cast(["2026-11-28T10:00:00Z"]), find_time_cast(["2026-11-28T10:00:00"])
    ('s', '', 'iso:UTC')
    """
    if all(isinstance(value, datetime) for value in values):
        return "iso:UTC" if any(value.tzinfo is None for value in values) else ""
    if all(_is_number(value) or (isinstance(value, str) and _NUMBER.fullmatch(value)) for value in values):
        middle = median(float(value) for value in values)
        unit = next((unit for end, unit in _UNIT_ENDS if middle < end), None)
        if middle < _FIRST_SECOND or unit is None:
            return None
        return "" if unit == "ms" and all(_is_integer(value) for value in values) else unit
    if not all(isinstance(value, str) for value in values):
        return None
    cast = ""
    for value in values:
        try:
            parse_timestamp_ms(value)
        except InvalidEvent as error:
            if error.reason != "timestamp_without_offset":
                return None
            cast = "iso:UTC"
    return cast


def toml_string(text: str) -> str:
    """Return a text as a string of TOML.

    >>> print(toml_string("payload.id"), toml_string('a."b.c"'))
    "payload.id" 'a."b.c"'
    """
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(text: str) -> str:
    """Return a text as a key of TOML, in quotes if necessary."""
    return text if _BARE_KEY.fullmatch(text) else toml_string(text)


def _is_text(value: object) -> bool:
    """Return whether a value may be an id or a name; sentences are neither."""
    if isinstance(value, str):
        return len(value) <= _MAX_ID_LENGTH and len(value.split()) <= _MAX_WORDS
    return isinstance(value, (int, UUID)) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _is_vote(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in TRUE_WORDS | FALSE_WORDS)


def _is_numeric_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return Decimal(value).is_finite()
    except ArithmeticError:
        return False
