"""Parsers of `exclude` and `unit`: fields of a response that are known before the student is assigned to a variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from monitor.config.paths import Step, dotted_members, parse_path
from monitor.config.settings import ASSIGNED_FIELDS, UNIT_FIELDS, FieldPatterns, Settings
from monitor.config.values import ConfigProblems
from monitor.errors import ConfigError

MAX_VARIANTS_WITH_EXCLUDE: Final = 127
"""Most variants of an experiment with excluded responses, which are counted like those of further variants."""
_MAX_PATTERNS: Final = 100
_MAX_FIELD_LENGTH: Final = 100
_MAX_PATTERN_LENGTH: Final = 256
_UNSUITABLE_FIELDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("items", "latency_ms"), "the treatment can change the value"),
    **dict.fromkeys(("experiment", "variant"), "the value is the assignment itself"),
    **dict.fromkeys(("response_id", "query_id", "timestamp"), "the value belongs to one response"),
    **dict.fromkeys(("feedback_id", "kind", "score", "item_id", "withdrawn"), "the value belongs to feedback"),
    "attributes": "the name is that of a table: name one of its fields",
}
_FIELD_EXPECTATION: Final = "a field that is known before the student is assigned to a variant, such as user_id or role"


def parse_exclude(key: str, value: object) -> FieldPatterns:
    """Return the rules of a table: field → patterns; fields and patterns are sorted."""
    if not isinstance(value, dict):
        raise ConfigError(key, value, 'a table of fields and patterns, such as { user_id = ["test-*"] }')
    problems = ConfigProblems()
    rules: dict[str, tuple[str, ...]] = {}
    for field, patterns in dotted_members(value):
        with problems.collect():
            _check_field(f"{key}.{field}", field, patterns)
            rules[field] = _parse_patterns(f"{key}.{field}", patterns)
    problems.raise_errors()
    return MappingProxyType(dict(sorted(rules.items())))


def parse_unit(key: str, value: object) -> str:
    """Return the unit that is assigned to a variant: user, group, or the name of another field."""
    if not isinstance(value, str):
        raise ConfigError(key, value, "user, group, or the name of a field with the id of the unit, such as class_id")
    unit = next((unit for unit, field in UNIT_FIELDS.items() if field == value), value)
    if unit not in UNIT_FIELDS:
        _check_field(key, unit, unit)
        if unit in ASSIGNED_FIELDS:
            raise ConfigError(key, value, "the name of a field with the id of the unit, such as class_id")
    return unit


def parse_attribute_name(key: str, name: str) -> str:
    """Return the name of an attribute, which is no field of the events."""
    _check_field(key, name, name)
    if name in ASSIGNED_FIELDS:
        raise ConfigError(key, name, f"no attribute of this name, because {name} is a field of its own")
    return name


def _check_field(key: str, field: str, value: object) -> None:
    """Raise an error unless a field may be known before the student is assigned."""
    reason = _UNSUITABLE_FIELDS.get(field)
    if reason is not None:
        raise ConfigError(key, value, f"{_FIELD_EXPECTATION}; {field} is not: {reason}")
    try:
        path = parse_path(field)
    except ValueError as error:
        raise ConfigError(key, value, f"the name of a field, which is {error}") from error
    if len(field) > _MAX_FIELD_LENGTH or path.root != "value" or not all(map(_is_member_name, path.steps)):
        raise ConfigError(key, value, "the name of a field, or names joined by dots, such as user.role")


def _is_member_name(step: Step) -> bool:
    return isinstance(step, str) and step.isprintable() and not {'"', "\\"}.intersection(step)


def _parse_patterns(key: str, value: object) -> tuple[str, ...]:
    patterns = [value] if isinstance(value, str) else value
    if (
        not isinstance(patterns, list)
        or not 0 < len(patterns) <= _MAX_PATTERNS
        or not all(isinstance(pattern, str) and 0 < len(pattern) <= _MAX_PATTERN_LENGTH for pattern in patterns)
    ):
        raise ConfigError(key, value, f'a list of 1 to {_MAX_PATTERNS} patterns in quotes, such as ["test-*", "true"]')
    return tuple(sorted(set(patterns)))


def find_exclusion_errors(settings: Settings) -> Iterator[ConfigError]:
    """Yield an error for each experiment with too many variants to count excluded responses beside them."""
    for experiment in settings.experiments:
        if settings.excludes_responses(experiment) and len(experiment.variants) > MAX_VARIANTS_WITH_EXCLUDE:
            yield ConfigError(
                f"experiments.{experiment.name}.variants",
                f"{len(experiment.variants)} variants",
                f"at most {MAX_VARIANTS_WITH_EXCLUDE} variants, because excluded responses are counted beside them",
            )


def exclusion_warnings(settings: Settings) -> list[str]:
    """Return a sentence for each rule or unit that is valid but probably has another effect than intended."""
    kafka = settings.kafka
    names = {f"experiments.{experiment.name}": experiment for experiment in settings.experiments}
    rules = [(f"{name}.exclude", experiment.exclude) for name, experiment in names.items()]
    rules += [(f"kafka.sources[{index}].exclude", source.exclude) for index, source in enumerate(kafka.sources)]
    warnings = [
        f"{key}: the category may follow from earlier responses of the treatment. Then the excluded students differ "
        "between the variants: use a field that is known before the student is assigned"
        for key, fields in rules
        if "category" in fields
    ]
    for index, source in enumerate(kafka.sources):
        if source.event_type == "response" and source.attributes is not None:
            warnings += [
                f"{name} needs the attribute {attribute}, which kafka.sources[{index}] does not have: responses of the "
                f"source have no value of it. Add its path to the table attributes of the source's fields"
                for name, experiment in names.items()
                for attribute in sorted(experiment.attributes - source.attributes.keys())
            ]
    return warnings
