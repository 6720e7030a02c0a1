"""The TOML of a source: a starting point that the user completes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from monitor.config import EventType, SourceSettings, event_fields
from monitor.decoding.suggestions import toml_string

DEFAULT_EXPERIMENT: Final = "my-experiment"
"""Name of the experiment if the messages have none."""
_ZONE_COMMENT: Final = "  # TODO: these times have no offset; replace UTC by their zone, such as Europe/Berlin"
_DERIVED_COMMENT: Final = "  # no id found: events with the same values count once"
_TODO_FIELDS: Final[Mapping[str, str]] = {
    "response_id": 'response_id = "TODO"  # path of the id of the response',
    "timestamp": 'timestamp = { from = "$timestamp", as = "ms" }  # TODO: path of the event\'s own time',
    "experiment": f'experiment = {{ constant = "{DEFAULT_EXPERIMENT}" }}  # TODO: path of the name, or the name',
    "variant": 'variant = "TODO"  # path of the name of the variant',
    "items": 'items = "TODO"  # path of the list of ids, or a table: docs/sources.md#fields',
    "feedback_id": 'feedback_id = { derive = ["$topic", "$partition", "$offset"] }  # TODO: path of the event\'s id',
    "kind": 'kind = { constant = "click" }  # TODO: path of the kind of feedback, or its name',
}


def source_lines(source: SourceSettings, suggestions: Mapping[str, str]) -> list[str]:
    """Return lines for a source: the suggested fields; a whole source instead of one of the native format."""
    if source.wire_format != "native":
        return [field_line(name, text) for name, text in suggestions.items()]
    return [*table_lines(source.topics, source.event_type), *field_lines(source.event_type, suggestions)]


def table_lines(topics: Sequence[str], event_type: EventType) -> list[str]:
    """Return the lines of a source before its fields."""
    names = ", ".join(map(toml_string, topics))
    return ["[[kafka.sources]]", f"topics = [{names}]", f'event = "{event_type}"']


def field_lines(event_type: EventType, suggestions: Mapping[str, str]) -> list[str]:
    """Return the table of the fields, with a TODO for each required field without a suggestion."""
    return ["", "[kafka.sources.fields]", *_iterate_fields(event_type, suggestions)]


def _iterate_fields(event_type: EventType, suggestions: Mapping[str, str]) -> Iterator[str]:
    required, optional = event_fields(event_type)
    for name in (*required, *optional):
        if name in suggestions:
            yield field_line(name, suggestions[name])
        elif name in required:
            yield _TODO_FIELDS[name]


def field_line(name: str, text: str) -> str:
    """Return the line of a field."""
    comment = _ZONE_COMMENT if '"iso:UTC"' in text else _DERIVED_COMMENT if "derive =" in text else ""
    return f"{name} = {text}{comment}"
