"""Parsers of `[[kafka.sources]]`: topics, format, filters, and the mapping of fields (docs/sources.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, cast, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

from monitor.config.exclusion import parse_attribute_name, parse_exclude
from monitor.config.paths import Path, dotted_members, parse_path
from monitor.config.settings import (
    ASSIGNED_FIELDS,
    Cast,
    EnvelopeMode,
    EventType,
    FieldMapping,
    FieldPatterns,
    FieldValue,
    ItemsMapping,
    MessageFilter,
    SourceSettings,
    Tombstones,
    WireFormat,
)
from monitor.config.values import ConfigProblems, check_keys, parse_choice, parse_file_name, parse_text
from monitor.errors import ConfigError

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SOURCE_KEYS: Final = (
    "avro_schema_file", "each", "envelope", "event", "exclude", "fields", "format", "tombstones", "topics", "when"
)  # fmt: skip
_FIELD_KEYS: Final = ("as", "constant", "default", "derive", "from", "values")
_ITEMS_KEYS: Final = ("base", "default", "each", "item_id", "position")
_REQUIRED_FIELDS: Final[Mapping[EventType, tuple[str, ...]]] = {
    "response": ("response_id", "timestamp", "experiment", "variant", "items"),
    "feedback": ("feedback_id", "response_id", "timestamp", "kind"),
}
_OPTIONAL_FIELDS: Final[Mapping[EventType, tuple[str, ...]]] = {
    "response": ("user_id", "query_id", "category", "latency_ms", "group_id", "session_id"),
    "feedback": ("user_id", "item_id", "score", "withdrawn"),
}
_TEXT_CASTS: Final = ("text",)
_CASTS: Final[Mapping[str, tuple[str, ...]]] = {
    "timestamp": ("s", "ms", "us", "ns", "iso", "iso:ZONE"),
    "score": ("number", "truthy"),
    "latency_ms": ("number", "s", "ms", "us", "ns"),
    "withdrawn": ("truthy",),
}
"""Field → its casts, if it is not a text."""
_ANY_VALUE: Final = "*"
_MAX_WHOLE_NUMBER: Final = 10**30
_ZONE_PREFIX: Final = "iso:"
_MAX_SOURCES: Final = 100
_ELEMENT_EXPECTATION: Final = "$element and $index only in a source with the key each"


def parse_sources(key: str, value: object) -> tuple[SourceSettings, ...]:
    """Return the sources of `[[kafka.sources]]`; raises the errors of all of them."""
    if not isinstance(value, list) or not value or not all(isinstance(table, dict) for table in value):
        raise ConfigError(key, "[kafka.sources]" if isinstance(value, dict) else value, "[[kafka.sources]] tables")
    if len(value) > _MAX_SOURCES:
        raise ConfigError(key, len(value), f"at most {_MAX_SOURCES} sources")
    problems = ConfigProblems()
    sources = []
    for index, table in enumerate(value):
        with problems.collect():
            sources.append(_parse_source(f"{key}[{index}]", table))
    problems.raise_errors()
    for event_type in get_args(EventType):
        if not any(source.event_type == event_type for source in sources):
            raise ConfigError(key, f"no source with {event_type} events", f'a source with event = "{event_type}"')
    return tuple(sources)


def parse_topic(key: str, value: object) -> str:
    """Return the name of a topic."""
    name = parse_text(key, value)
    if not TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(key, value, "a topic name of at most 249 letters, digits, . _ and -")
    return name


def _parse_source(key: str, table: Mapping[str, Any]) -> SourceSettings:
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, table, _SOURCE_KEYS)
    topics: tuple[str, ...] = ()
    with problems.collect():
        topics = _parse_topics(f"{key}.topics", table.get("topics"))
    event_type: EventType | None = None
    with problems.collect():
        event_type = parse_choice(f"{key}.event", table.get("event"), get_args(EventType))
    wire_format: WireFormat = "auto"
    envelope: EnvelopeMode = "auto"
    tombstones: Tombstones | None = None
    avro_schema_file: str | None = None
    with problems.collect():
        wire_format = parse_choice(f"{key}.format", table.get("format", wire_format), get_args(WireFormat))
    with problems.collect():
        envelope = parse_choice(f"{key}.envelope", table.get("envelope", envelope), get_args(EnvelopeMode))
    with problems.collect():
        if "tombstones" in table:
            tombstones = parse_choice(f"{key}.tombstones", table["tombstones"], get_args(Tombstones))
    with problems.collect():
        avro_schema_file = _parse_schema_file(f"{key}.avro_schema_file", table.get("avro_schema_file"), wire_format)
    filters: tuple[MessageFilter, ...] = ()
    with problems.collect():
        filters = _parse_filters(f"{key}.when", table.get("when", {}))
    elements: Path | None = None
    with problems.collect():
        elements = _parse_elements(f"{key}.each", table["each"]) if "each" in table else None
    exclude: FieldPatterns = MappingProxyType({})
    with problems.collect():
        exclude = _parse_source_exclude(f"{key}.exclude", table.get("exclude", {}), event_type)
    if wire_format == "native":
        for name in ("fields", "each", "when", "envelope"):
            if name in table:
                problems.errors.append(
                    ConfigError(f"{key}.{name}", table[name], 'the key only with another format, such as "json"')
                )
    if event_type is None or wire_format == "native":
        problems.raise_errors()
        return SourceSettings(topics, cast(EventType, event_type), "native", tombstones=tombstones, exclude=exclude)
    fields: Mapping[str, FieldMapping] = {}
    items: ItemsMapping | None = None
    attributes: Mapping[str, FieldMapping] | None = None
    with problems.collect():
        fields, items = _parse_fields(f"{key}.fields", table.get("fields"), event_type, has_elements="each" in table)
    with problems.collect():
        attributes = _parse_attributes(key, table, exclude)
    with problems.collect():
        if elements is None and any(item.path.depends_on_element for item in filters):
            raise ConfigError(f"{key}.when", table["when"], _ELEMENT_EXPECTATION)
    problems.raise_errors()
    return SourceSettings(
        topics, event_type, wire_format, envelope, avro_schema_file, filters, tombstones, elements, fields, items,
        attributes, exclude,
    )  # fmt: skip


def _parse_schema_file(key: str, value: object, wire_format: WireFormat) -> str | None:
    if value is not None and wire_format != "avro":
        raise ConfigError(key, value, 'the key only with format = "avro"')
    return None if value is None else parse_file_name(key, value)


def _parse_elements(key: str, value: object) -> Path:
    path = _parse_list_path(key, value)
    if path.root not in ("value", "envelope"):
        raise ConfigError(key, value, "a path within the message")
    return path


def _parse_topics(key: str, value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise ConfigError(key, value, 'a list of topics, such as ["search.answers"]')
    return tuple(dict.fromkeys(parse_topic(key, name) for name in names))


def _parse_filters(key: str, value: object) -> tuple[MessageFilter, ...]:
    if not isinstance(value, dict):
        raise ConfigError(key, value, 'a table of paths and values, such as { "payload.type" = ["answer"] }')
    problems = ConfigProblems()
    filters = []
    for path, allowed in dotted_members(value):
        with problems.collect():
            filters.append(_parse_filter(f"{key}.{path}", path, allowed))
    problems.raise_errors()
    return tuple(filters)


def _parse_filter(key: str, path: str, value: object) -> MessageFilter:
    allowed = value if isinstance(value, list) else [value]
    if not allowed or not all(isinstance(member, (str, int, float)) for member in allowed):
        raise ConfigError(key, value, 'a value or a list of values; "*" passes every value but null')
    values = None if _ANY_VALUE in allowed else frozenset(value_text(member) or "" for member in allowed)
    return MessageFilter(_parse_single_path(key, path), values)


def value_text(value: object) -> str | None:
    """Return the text by which filters and value maps compare a scalar; None for other values.

    >>> value_text(True), value_text(17), value_text(1.0), value_text("A")
    ('true', '17', '1', 'A')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _MAX_WHOLE_NUMBER else None
    if isinstance(value, (float, Decimal)):
        number = float(value) if math.isfinite(value) else math.nan
        return str(int(number)) if number.is_integer() and abs(number) < _MAX_WHOLE_NUMBER else str(number)
    return str(value) if isinstance(value, (UUID, date)) else None


def _parse_fields(
    key: str, value: object, event_type: EventType, *, has_elements: bool
) -> tuple[Mapping[str, FieldMapping], ItemsMapping | None]:
    """Return the mappings of the event's fields; without a table, those of the native names."""
    required, optional = _REQUIRED_FIELDS[event_type], _OPTIONAL_FIELDS[event_type]
    table = _native_paths(event_type, has_elements=has_elements) if value is None else value
    if not isinstance(table, dict):
        raise ConfigError(key, table, "a table, which begins with the line [kafka.sources.fields]")
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, table, (*required, *optional, *(("attributes",) if event_type == "response" else ())))
    fields: dict[str, FieldMapping] = {}
    items: ItemsMapping | None = None
    for name in required:
        if name not in table:
            problems.errors.append(ConfigError(f"{key}.{name}", None, f"a path: every {event_type} needs a {name}"))
    for name, mapping in table.items():
        with problems.collect():
            if name == "items" and event_type == "response":
                items = _parse_items(f"{key}.items", mapping)
                if not has_elements and items.elements.depends_on_element:
                    raise ConfigError(f"{key}.items.each", items.elements.text, _ELEMENT_EXPECTATION)
            elif name in (*required, *optional):
                fields[name] = _parse_field(f"{key}.{name}", name, mapping)
                if name == f"{event_type}_id" and fields[name].default is not None:
                    raise ConfigError(f"{key}.{name}", mapping, f"no constant: every {event_type} has an id of its own")
                if not has_elements and any(path.depends_on_element for path in fields[name].paths):
                    raise ConfigError(f"{key}.{name}", mapping, _ELEMENT_EXPECTATION)
    problems.raise_errors()
    return MappingProxyType(fields), items


def _parse_source_exclude(key: str, value: object, event_type: EventType | None) -> FieldPatterns:
    rules = parse_exclude(key, value)
    if rules and event_type == "feedback":
        raise ConfigError(key, value, "the key only in a source of responses")
    return rules


def _parse_attributes(key: str, table: Mapping[str, Any], exclude: FieldPatterns) -> Mapping[str, FieldMapping] | None:
    """Return the mappings of a source's attributes; None without a table of fields: names are then paths."""
    fields = table.get("fields")
    if not isinstance(fields, dict):
        return None
    attributes_key, value = f"{key}.fields.attributes", fields.get("attributes", {})
    if not isinstance(value, dict):
        raise ConfigError(attributes_key, value, 'a table of names and paths, such as { role = "user.role" }')
    problems = ConfigProblems()
    attributes: dict[str, FieldMapping] = {}
    for name, mapping in value.items():
        name_key = f"{attributes_key}.{name}"
        with problems.collect():
            field = _parse_field(name_key, parse_attribute_name(name_key, name), mapping)
            attributes[name] = replace(field, cast="text")
            if "each" not in table and any(path.depends_on_element for path in attributes[name].paths):
                raise ConfigError(name_key, mapping, _ELEMENT_EXPECTATION)
    for name in exclude:
        if name not in (*ASSIGNED_FIELDS, *value):
            expected = f"a path of {name} in the table {attributes_key} as well"
            problems.errors.append(ConfigError(f"{key}.exclude.{name}", list(exclude[name]), expected))
    problems.raise_errors()
    return MappingProxyType(attributes)


def _native_paths(event_type: EventType, *, has_elements: bool) -> dict[str, Any]:
    """Return the mapping of the native names."""
    prefix = "$element." if has_elements else ""
    names = (*_REQUIRED_FIELDS[event_type], *_OPTIONAL_FIELDS[event_type])
    paths: dict[str, Any] = {name: f"{prefix}{name}" for name in names}
    if event_type == "response":
        paths["items"] = {"each": f"{prefix}items", "item_id": "item_id", "position": "position"}
    return paths


def native_fields(event_type: EventType) -> tuple[Mapping[str, FieldMapping], ItemsMapping | None]:
    """Return the mapping of the native names."""
    return _parse_fields("kafka.sources.fields", None, event_type, has_elements=False)


def event_fields(event_type: EventType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the required and of the optional fields of an event."""
    return _REQUIRED_FIELDS[event_type], _OPTIONAL_FIELDS[event_type]


def _parse_field(key: str, name: str, value: object) -> FieldMapping:
    if not isinstance(value, dict):
        return FieldMapping(_parse_paths(key, value))
    check_keys(key, value, _FIELD_KEYS)
    origins = [origin for origin in ("from", "constant", "derive") if origin in value]
    if len(origins) != 1:
        raise ConfigError(key, value, "one of the keys from, constant and derive")
    if "constant" in value:
        _check_only_key(key, value, "constant")
        return FieldMapping(default=_parse_value(f"{key}.constant", name, value["constant"]))
    if "derive" in value:
        _check_only_key(key, value, "derive")
        if not name.endswith("_id"):
            raise ConfigError(f"{key}.derive", value["derive"], "the key only for ids")
        return FieldMapping(_parse_paths(f"{key}.derive", value["derive"]), is_derived=True)
    paths = _parse_paths(f"{key}.from", value["from"])
    field_cast, zone = _parse_cast(f"{key}.as", name, value["as"]) if "as" in value else (None, None)
    values: dict[str, FieldValue] = {}
    if "values" in value:
        if name == "timestamp" or not isinstance(value["values"], dict) or not value["values"]:
            expected = "no value map for times" if name == "timestamp" else 'a table such as { A = "control" }'
            raise ConfigError(f"{key}.values", value["values"], expected)
        values = {text: _parse_value(f"{key}.values.{text}", name, to) for text, to in value["values"].items()}
    default = _parse_value(f"{key}.default", name, value["default"]) if "default" in value else None
    return FieldMapping(paths, field_cast, zone, MappingProxyType(values), default)


def _check_only_key(key: str, table: Mapping[str, object], name: str) -> None:
    if len(table) > 1:
        raise ConfigError(key, table, f"no other key beside {name}")


def _parse_value(key: str, name: str, value: object) -> FieldValue:
    """Return a constant, a default, or a member of a value map, of the field's type."""
    if name in ("score", "latency_ms"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise ConfigError(key, value, "a number from 0")
        return float(value)
    if name == "withdrawn":
        if not isinstance(value, bool):
            raise ConfigError(key, value, "true or false")
        return value
    if name == "timestamp":
        raise ConfigError(key, value, "a path: every event has a time of its own")
    return parse_text(key, value)


def _parse_cast(key: str, name: str, value: object) -> tuple[Cast, str | None]:
    casts = _CASTS.get(name, _TEXT_CASTS)
    if isinstance(value, str) and value.startswith(_ZONE_PREFIX) and "iso:ZONE" in casts:
        zone = value.removeprefix(_ZONE_PREFIX)
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, KeyError) as error:
            raise ConfigError(key, value, "a zone of the IANA database, as in iso:Europe/Berlin") from error
        return "iso", zone
    if value not in casts or value == "iso:ZONE":
        raise ConfigError(key, value, f"one of {', '.join(casts)}")
    return cast(Cast, value), None


def _parse_paths(key: str, value: object) -> tuple[Path, ...]:
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise ConfigError(key, value, "at least one path")
    return tuple(_parse_single_path(key, text) for text in texts)


def _parse_single_path(key: str, value: object) -> Path:
    path = _parse_any_path(key, value)
    if path.has_every:
        raise ConfigError(key, value, "a path to one value; [*] is only for the key each")
    return path


def _parse_list_path(key: str, value: object) -> Path:
    """Return the path of a list; `[*]` at its end is not needed."""
    return _parse_any_path(key, value.removesuffix("[*]") if isinstance(value, str) and value != "[*]" else value)


def _parse_any_path(key: str, value: object) -> Path:
    if not isinstance(value, str):
        raise ConfigError(key, value, "a path, which is a string such as payload.id")
    try:
        return parse_path(value)
    except ValueError as error:
        raise ConfigError(key, value, str(error)) from error


def _parse_items(key: str, value: object) -> ItemsMapping:
    if not isinstance(value, dict):
        return ItemsMapping(_parse_list_path(key, value), FieldMapping((Path("$value", "value"),)))
    check_keys(key, value, _ITEMS_KEYS)
    if "each" not in value:
        raise ConfigError(f"{key}.each", None, "the path of the list")
    elements = _parse_list_path(f"{key}.each", value["each"])
    id_value = value.get("item_id", "$value")
    if isinstance(id_value, dict):
        check_keys(f"{key}.item_id", id_value, ("as", "from", "values"))
    item_id = _parse_field(f"{key}.item_id", "item_id", id_value)
    position = FieldMapping(_parse_paths(f"{key}.position", value["position"])) if "position" in value else None
    for name, mapping in (("item_id", item_id), ("position", position)):
        for path in () if mapping is None else mapping.paths:
            if path.root != "value":
                raise ConfigError(f"{key}.{name}", path.text, "a path within the element of the list")
    base = value.get("base", 1)
    if isinstance(base, bool) or base not in (0, 1) or (position is None and "base" in value):
        expected = "0 or 1, the position of the first item" if position else "the key only with the key position"
        raise ConfigError(f"{key}.base", base, expected)
    if value.get("default", []) != []:
        raise ConfigError(f"{key}.default", value["default"], "[], for messages without the list")
    return ItemsMapping(elements, item_id, position, base, may_be_absent="default" in value)
