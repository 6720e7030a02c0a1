"""Rules of exclusion and units of assignment in the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.config import Settings, aggregate_definitions, definition_changes, exclusion_warnings, parse_settings
from monitor.config.declared_set import DeclaredSet, decode_declared_set, encode_declared_set, replace_file_experiments
from monitor.errors import ConfigError, ConfigErrors

_EXPERIMENT: dict[str, Any] = {"name": "ranker", "control": "a", "variants": {"a": 0.5, "b": 0.5}}
_FIELDS: dict[str, Any] = {
    "response_id": "id",
    "timestamp": {"from": "at", "as": "ms"},
    "experiment": {"constant": "ranker"},
    "variant": "arm",
    "items": "hits",
}
_FEEDBACK_SOURCE = {"topics": ["feedback"], "event": "feedback"}


def _load(*sources: dict[str, Any], **keys: Any) -> Settings:
    document: dict[str, Any] = {"experiments": [{**_EXPERIMENT, **keys}]}
    if sources:
        document["kafka"] = {"sources": [*sources, _FEEDBACK_SOURCE]}
    return parse_settings(document, {})


def _source(**keys: Any) -> dict[str, Any]:
    return {"topics": ["answers"], "event": "response", "fields": _FIELDS, **keys}


def test_the_rules_of_an_experiment_are_sorted_and_may_name_nested_fields() -> None:
    """A single pattern needs no list, and an unquoted dotted key is the path of a member."""
    settings = _load(exclude={"user_id": ["test-*", "qa-*"], "user": {"role": "teacher"}, "category": ["demo"]})
    (experiment,) = settings.experiments
    assert list(experiment.exclude.items()) == [
        ("category", ("demo",)),
        ("user.role", ("teacher",)),
        ("user_id", ("qa-*", "test-*")),
    ]
    assert settings.attributes == ("user.role",)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("items", "the treatment can change the value"),
        ("latency_ms", "the treatment can change the value"),
        ("variant", "the value is the assignment itself"),
        ("response_id", "the value belongs to one response"),
        ("timestamp", "the value belongs to one response"),
        ("query_id", "the value belongs to one response"),
        ("score", "the value belongs to feedback"),
    ],
)
def test_a_field_that_is_not_known_before_the_assignment_is_rejected_with_the_reason(field: str, reason: str) -> None:
    """In rules of exclusion as well as in the unit, and as the name of an attribute."""
    for keys in ({"exclude": {field: ["x"]}}, {"unit": field}):
        with pytest.raises(ConfigError, match=f"known before the student is assigned.*{field} is not: {reason}"):
            _load(**keys)
    with pytest.raises(ConfigError, match=f"{field} is not: {reason}"):
        _load(_source(fields={**_FIELDS, "attributes": {field: "x"}}))


@pytest.mark.parametrize(
    "value", [[], "test-*", {"role": []}, {"role": [True]}, {"role": [""]}, {"a[0]": ["x"]}, {'"a\\"b"': ["x"]}]
)
def test_rules_of_another_form_are_rejected(value: object) -> None:
    """A rule is a field with patterns, which are strings."""
    with pytest.raises(ConfigError):
        _load(exclude=value)


def test_an_experiment_with_rules_has_at_most_127_variants() -> None:
    """The rules of a source concern all experiments."""
    shares = {f"v{number}": 1 / 128 for number in range(128)}
    keys: dict[str, Any] = {"control": "v0", "variants": shares}
    assert len(_load(**keys).experiments[0].variants) == 128
    for sources, exclude in (((), {"role": ["teacher"]}), ((_source(exclude={"user_id": ["test-*"]}),), {})):
        with pytest.raises(ConfigError, match="at most 127 variants, because excluded responses are counted"):
            _load(*sources, **keys, exclude=exclude)


def test_the_unit_is_user_group_or_another_field() -> None:
    """The fields of user and group are other names for these."""
    units = {
        unit: _load(unit=unit).experiments[0].unit for unit in ("user", "user_id", "group", "group_id", "class_id")
    }
    assert units == {
        "user": "user", "user_id": "user", "group": "group", "group_id": "group", "class_id": "class_id"
    }  # fmt: skip
    assert _load(unit="class_id").attributes == ("class_id",)
    assert _load(unit="group").attributes == ()
    with pytest.raises(ConfigError):
        _load(unit="category")


def test_rules_are_part_of_the_definitions_of_the_stored_sums() -> None:
    """Only if there are any: other experiments keep their definitions."""
    (experiment,) = _load().experiments
    assert "exclude" not in aggregate_definitions(experiment)
    with_rules = replace(experiment, exclude={"user_id": ("test-*",), "role": ("teacher",)})
    assert aggregate_definitions(with_rules)["exclude"] == {"role": ["teacher"], "user_id": ["test-*"]}
    (change,) = definition_changes(experiment, with_rules)
    assert change.startswith("ranker.exclude: not set in the store, ")


def test_rules_and_units_are_kept_in_the_declared_set() -> None:
    """Workers read the set from the store."""
    (experiment,) = _load(exclude={"role": ["teacher"]}, unit="class_id").experiments
    declared = replace_file_experiments(DeclaredSet(), [experiment], "a file", 1)
    assert decode_declared_set(encode_declared_set(declared)) == declared


def test_a_source_maps_attributes_and_has_rules_of_its_own() -> None:
    """Its rules may name an attribute only if its fields have a path of the attribute."""
    attributes = {"role": "user.role", "class_id": {"derive": ["school", "class"]}}
    source = _source(fields={**_FIELDS, "attributes": attributes}, exclude={"role": ["teacher"], "user_id": ["t-*"]})
    settings = _load(source)
    assert settings.attributes == ("role",)
    mappings = settings.kafka.sources[0].attributes
    assert mappings is not None
    assert [path.text for path in mappings["role"].paths] == ["user.role"]
    assert mappings["class_id"].is_derived
    with pytest.raises(ConfigError, match="a path of role in the table"):
        _load(_source(exclude={"role": ["teacher"]}))
    with pytest.raises((ConfigError, ConfigErrors), match="no attribute of this name"):
        _load(_source(fields={**_FIELDS, "attributes": {"user_id": "x"}}))
    with pytest.raises(ConfigError, match="only in a source of responses"):
        _load(_source(), {**_FEEDBACK_SOURCE, "exclude": {"user_id": ["t-*"]}})


def test_a_rule_on_the_category_and_an_attribute_without_a_path_are_warned_about() -> None:
    """Both are valid, but the rule may depend on the treatment, or have no effect."""
    assert exclusion_warnings(_load(_source(), exclude={"user_id": ["test-*"]})) == []
    category, attribute = exclusion_warnings(_load(_source(), exclude={"category": ["demo"], "role": ["teacher"]}))
    assert category.startswith("experiments.ranker.exclude: the category may follow from earlier responses")
    assert attribute.startswith("experiments.ranker needs the attribute role, which kafka.sources[0] does not have")
    assert exclusion_warnings(_load(exclude={"role": ["teacher"]})) == []
