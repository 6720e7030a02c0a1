"""The definitions of stored aggregates: the settings of an experiment that its sums in the store depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from monitor.clock import DAY_MS, HOUR_MS
from monitor.config.settings import ExperimentSettings, ItemSettings
from monitor.days import UTC_ZONE
from monitor.errors import count_noun, setting_text

_UNITS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": 60_000, "s": 1000}


def aggregate_definitions(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return the settings that the stored aggregates of an experiment depend on, as JSON.

    These settings are left out because they concern only display, decisions or retention: control, shares,
    allowed_lateness, retention, `DriftSettings`, `DecisionSettings`. Exceptions are the metrics of guardrails, and the
    primary metric if some sums are only of that metric.
    """
    gain, pre_period_ms = experiment.gain, experiment.pre_period_ms
    return {
        **({"student_metrics": list(experiment.student_metrics)} if experiment.student_metrics else {}),
        **({"day": experiment.day_zone} if experiment.day_zone != UTC_ZONE else {}),
        **({"unit": experiment.unit} if experiment.unit != "user" else {}),
        **(
            {"exclude": {field: list(patterns) for field, patterns in sorted(experiment.exclude.items())}}
            if experiment.exclude
            else {}
        ),
        **({"primary": experiment.primary} if _depends_on_primary(experiment) else {}),
        **({"novelty": True} if experiment.novelty else {}),
        **({"pre_period_ms": pre_period_ms} if pre_period_ms else {}),
        "variants": sorted(experiment.variants),
        "metrics": [metric.name for metric in experiment.metrics],
        **_answer_metric_definitions(experiment),
        "gain": gain
        if isinstance(gain, str)
        else {repr(grade).removesuffix(".0"): gain[grade] for grade in sorted(gain)},
        "discount": experiment.discount,
        "ideal": experiment.ideal,
        "max_grade": experiment.max_grade,
        "relevant_grade": experiment.relevant_grade,
        "grades": {
            kind: [list(step) for step in rule] if isinstance(rule, tuple) else rule
            for kind, rule in sorted(experiment.grades.items())
        },
        "feedback_window_ms": experiment.feedback_window_ms,
        "feedback_clock_tolerance_ms": experiment.feedback_clock_tolerance_ms,
        "categories": sorted(experiment.categories),
        "items": _item_definitions(experiment.items),
        "exposure_days": experiment.exposure_days,
        "decay": sorted(decay.name for decay in experiment.decay),
        "starts_at_ms": experiment.starts_at_ms,
        "ends_at_ms": experiment.ends_at_ms,
    }


def _answer_metric_definitions(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return the settings that only sums of answer metrics depend on, as JSON."""
    metrics = experiment.answer_metrics
    definitions: dict[str, Any] = {
        "ranges": {metric.name: [metric.least, metric.most] for metric in metrics if metric.most != 1 or metric.least},
        "silence": {metric.name: metric.silence for metric in metrics if metric.silence is not None},
        "exclusive_kinds": sorted(sorted(group) for group in experiment.exclusive_kinds),
        "additive_kinds": sorted(experiment.additive_kinds),
    }
    return {key: value for key, value in definitions.items() if value}


def _depends_on_primary(experiment: ExperimentSettings) -> bool:
    """Return whether subgroups, pairs or undefined values of the primary metric have separate sums."""
    return bool(
        experiment.categories or experiment.novelty or experiment.pre_period_ms or experiment.primary_may_be_undefined
    )


def _item_definitions(items: ItemSettings | None) -> dict[str, Any] | None:
    """Return the settings that the stored counts of items depend on, as JSON."""
    if items is None:
        return None
    catalogue = None
    if items.catalogue is not None:
        catalogue = blake2b("\n".join(sorted(items.catalogue)).encode(), digest_size=8).hexdigest()
    return {
        "days": items.horizon_days,
        "catalogue": catalogue,
        "sample_one_in": items.sample_one_in,
        "expected_items": items.expected_items,
    }


def definition_differences(experiment_name: str, stored: Mapping[str, Any], configured: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each definition of an experiment that differs between the store and the settings (JSON)."""
    return [
        phrase
        for definition in sorted({*stored, *configured})
        if stored.get(definition) != configured.get(definition)
        for phrase in _describe_difference(
            f"{experiment_name}.{_SETTING_NAMES.get(definition, definition)}",
            definition,
            stored.get(definition),
            configured.get(definition),
        )
    ]


def _describe_difference(setting: str, definition: str, stored: Any, configured: Any) -> list[str]:
    """Return the difference in words: added and removed members of lists, and both values of other settings."""
    if definition == "items" and stored and configured:
        return [
            f"{setting}.{_SETTING_NAMES.get(key, key)}: {_describe_item_value(key, stored.get(key))} in the store, "
            f"{_describe_item_value(key, configured.get(key))} in the file"
            for key in sorted({*stored, *configured})
            if stored.get(key) != configured.get(key)
        ]
    is_list = definition in _LISTS_OF_NAMES and isinstance(stored, list) and isinstance(configured, list)
    if is_list and set(stored) != set(configured):
        removed = [str(member) for member in stored if member not in configured]
        added = [str(member) for member in configured if member not in stored]
        changes = [f"the file lacks {', '.join(removed)}"] if removed else []
        changes += [f"the file adds {', '.join(added)}"] if added else []
        return [f"{setting}: {' and '.join(changes)}"]
    describe = _DESCRIPTIONS.get(definition, describe_value)
    return [f"{setting}: {describe(stored)} in the store, {describe(configured)} in the file"]


def describe_value(value: Any) -> str:
    """Return a setting's value for readers; an absent or empty value is "not set"."""
    if value is None or value in ([], {}):
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else setting_text(value)


def describe_duration(duration_ms: int | None) -> str:
    """Return a duration as in the configuration file, in the largest unit that gives a whole number."""
    if duration_ms is None:
        return "not set"
    unit = next((unit for unit, length_ms in _UNITS.items() if duration_ms % length_ms == 0), None)
    return f"{duration_ms}ms" if unit is None else f"{duration_ms // _UNITS[unit]}{unit}"


def _describe_instant(instant_ms: int | None) -> str:
    return "not set" if instant_ms is None else datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat()


def _describe_items(items: Mapping[str, Any] | None) -> str:
    return "not counted" if items is None else f"counted over {count_noun(items['days'], 'day')}"


def _describe_item_value(key: str, value: Any) -> str:
    if key == "days":
        return f"{value}d"
    if key == "catalogue":
        return "all items" if value is None else f"the list of ids with checksum {value}"
    return describe_value(value)


_LISTS_OF_NAMES: Final = {"student_metrics", "variants", "metrics", "categories", "decay"}
_SETTING_NAMES: Final = {
    "student_metrics": "metrics",
    "pre_period_ms": "pre_period",
    "feedback_window_ms": "feedback_window",
    "feedback_clock_tolerance_ms": "feedback_clock_tolerance",
    "starts_at_ms": "starts_at",
    "ends_at_ms": "ends_at",
    "days": "horizon",
}
"""Definition → key of the configuration file, where they differ."""
_DESCRIPTIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "pre_period_ms": describe_duration,
    "feedback_window_ms": describe_duration,
    "feedback_clock_tolerance_ms": describe_duration,
    "starts_at_ms": _describe_instant,
    "ends_at_ms": _describe_instant,
    "items": _describe_items,
}
"""Definition → function that describes its value."""
