"""Parses an `[[experiments]]` table → `ExperimentSettings`, and lists the definitions of stored aggregates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast, get_args

from monitor.clock import DAY_MS
from monitor.config.criteria import DECISION_KEYS, decision_warnings, parse_decision
from monitor.config.settings import (
    NO_CATEGORY,
    OTHER_CATEGORY,
    DecaySpec,
    DriftSettings,
    ExperimentSettings,
    GradeRule,
    ItemSettings,
    MetricSpec,
    NamedDiscount,
    NamedGain,
    NdcgIdeal,
)
from monitor.config.values import (
    check_keys,
    parse_boolean,
    parse_choice,
    parse_duration_ms,
    parse_instant_ms,
    parse_integer,
    parse_number,
    parse_shares,
    parse_text,
    read_lines,
)
from monitor.errors import ConfigError

_KEYS: Final = {
    "name", "control", "variants", "starts_at", "ends_at", "metrics", "primary", "gain", "discount", "ideal",
    "max_grade", "relevant_grade", "grades", "feedback_window", "allowed_lateness", "retention", "decay",
    "categories", "drift", "items", "exposure_days", "novelty", "pre_period", *DECISION_KEYS,
}  # fmt: skip
_MEASURES: Final = ("cg", "dcg", "ndcg", "success", "rr", "p")
_METRIC_NAME: Final = re.compile(r"([a-z]+)@([1-9][0-9]{0,2})")
_RECIPROCAL_DECAY: Final = re.compile(r"reciprocal-([1-9][0-9]{0,2})d")
_MAX_NAME_LENGTH: Final = 100
_MAX_KIND_LENGTH: Final = 64
_MAX_K: Final = 100
MAX_GAIN: Final = 65_536.0
_MAX_EXPONENT: Final = 16.0
_MAX_DECAYS: Final = 6
_MAX_VARIANTS: Final = 255
_MAX_METRICS: Final = 20
_MAX_CATEGORIES: Final = 100
_ITEM_KEYS: Final = ("catalogue", "expected_items", "horizon", "sample_one_in")
_MAX_HORIZON_DAYS: Final = 365
_MAX_ITEMS: Final = 10_000_000
_MAX_SAMPLE_ONE_IN: Final = 1_000_000
_DRIFT_KEYS: Final = ("alpha", "items_reference", "reference")
_DRIFT_ALPHA_RANGE: Final = (0.001, 0.25)
_MAX_REFERENCE_DAYS: Final = 90
_MAX_OBSERVATIONS: Final = 10**8
_MIN_HALF_LIFE_MS: Final = 1000
_MAX_WEIGHT_BEYOND_RETENTION: Final = 2.0**-9
"""Share of a decayed mean's weight that may be older than `retention` without a warning."""


def parse_experiment(table: Mapping[str, Any], index: int) -> ExperimentSettings:
    """Return the experiment of a table, the `index`th of the file; raises `ConfigError` for the first wrong value."""
    experiment_key = f"experiments[{index}]"
    if "name" not in table:
        raise ConfigError(f"{experiment_key}.name", None, "a name")
    name = _parse_name(f"{experiment_key}.name", table["name"])
    experiment_key = f"experiments.{name}"
    check_keys(experiment_key, table, _KEYS)
    variants = _parse_variants(f"{experiment_key}.variants", table.get("variants"))
    metrics = parse_metric_specs(f"{experiment_key}.metrics", table.get("metrics", ["dcg@5", "ndcg@5", "success@5"]))
    names = [metric.name for metric in metrics]
    gain = _parse_gain(f"{experiment_key}.gain", table.get("gain", "linear"))
    grade_limit = _MAX_EXPONENT if gain == "exp2" else MAX_GAIN
    max_grade = parse_number(f"{experiment_key}.max_grade", table.get("max_grade", 4), 0.001, grade_limit)
    starts_at_ms = _parse_optional_instant_ms(f"{experiment_key}.starts_at", table.get("starts_at"))
    ends_at_ms = _parse_optional_instant_ms(f"{experiment_key}.ends_at", table.get("ends_at"))
    categories = _parse_categories(f"{experiment_key}.categories", table.get("categories", []))
    if starts_at_ms is not None and ends_at_ms is not None and ends_at_ms <= starts_at_ms:
        raise ConfigError(f"{experiment_key}.ends_at", str(table["ends_at"]), "a time after starts_at")
    experiment = ExperimentSettings(
        name=name,
        control=parse_choice(f"{experiment_key}.control", table.get("control"), variants),
        variants=variants,
        starts_at_ms=starts_at_ms,
        ends_at_ms=ends_at_ms,
        metrics=metrics,
        primary=parse_choice(
            f"{experiment_key}.primary", table.get("primary", "dcg@5" if "dcg@5" in names else names[0]), names
        ),
        gain=gain,
        discount=parse_choice(f"{experiment_key}.discount", table.get("discount", "log2"), get_args(NamedDiscount)),
        ideal=parse_choice(f"{experiment_key}.ideal", table.get("ideal", "shown"), get_args(NdcgIdeal)),
        max_grade=max_grade,
        relevant_grade=parse_number(
            f"{experiment_key}.relevant_grade", table.get("relevant_grade", min(3, max_grade)), 0.0, max_grade
        ),
        grades=_parse_grades(f"{experiment_key}.grades", table.get("grades", {"rating": "score"}), max_grade),
        feedback_window_ms=parse_duration_ms(f"{experiment_key}.feedback_window", table.get("feedback_window", "24h")),
        allowed_lateness_ms=parse_duration_ms(
            f"{experiment_key}.allowed_lateness", table.get("allowed_lateness", "7d")
        ),
        retention_ms=parse_duration_ms(f"{experiment_key}.retention", table.get("retention", "30d")),
        decay=_parse_decays(f"{experiment_key}.decay", table.get("decay", ["1h", "24h"])),
        categories=categories,
        items=_parse_items(f"{experiment_key}.items", table.get("items")),
        drift=_parse_drift(f"{experiment_key}.drift", table.get("drift", {}), categories),
        exposure_days=parse_integer(f"{experiment_key}.exposure_days", table.get("exposure_days", 3), 1, 90),
        novelty=parse_boolean(f"{experiment_key}.novelty", table.get("novelty", False)),
        pre_period_ms=_parse_pre_period_ms(f"{experiment_key}.pre_period", table.get("pre_period"), starts_at_ms),
    )
    experiment = replace(experiment, decision=parse_decision(table, experiment_key, experiment))
    if variants[experiment.control] == 0:
        raise ConfigError(f"{experiment_key}.variants", dict(variants), "a share above 0 for the control")
    if experiment.retention_ms < experiment.horizon_ms:
        raise ConfigError(
            f"{experiment_key}.retention",
            table.get("retention", "30d"),
            "at least feedback_window + allowed_lateness: time buckets must not be deleted while they can still change",
        )
    _check_gains(experiment_key, experiment)
    return experiment


def experiment_warnings(experiments: Sequence[ExperimentSettings]) -> list[str]:
    """Return a sentence for each setting that is valid but probably has another effect than intended."""
    warnings = [warning for experiment in experiments for warning in decision_warnings(experiment)]
    for experiment in experiments:
        for decay in experiment.decay:
            weight, sufficient_retention = _weight_beyond_retention(decay, experiment.retention_ms)
            if weight > _MAX_WEIGHT_BEYOND_RETENTION:
                warnings.append(
                    f"experiments.{experiment.name}.decay: {decay.name} leaves out responses older than retention, up "
                    f"to {weight:.1%} of its weight: set retention to {sufficient_retention} or more"
                )
    return warnings


def _weight_beyond_retention(decay: DecaySpec, retention_ms: int) -> tuple[float, str]:
    """Return the share of steady traffic's weight that is older than `retention`, and a sufficient retention."""
    if decay.half_life_ms is not None:
        return 2.0 ** (-retention_ms / decay.half_life_ms), f"{math.ceil(9 * decay.half_life_ms / DAY_MS)}d"
    cutoff_days = (decay.cutoff_ms or 0) / DAY_MS
    retained_weight = math.log1p(min(retention_ms / DAY_MS, cutoff_days)) / math.log1p(cutoff_days)
    return 1 - retained_weight, f"{cutoff_days:g}d"


def _parse_name(key: str, value: object) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _MAX_NAME_LENGTH
        or not value.isprintable()
        or value != value.strip()
    ):
        raise ConfigError(key, value, f"1 to {_MAX_NAME_LENGTH} printable characters without blanks around them")
    return value


def _parse_variants(key: str, value: object) -> Mapping[str, float]:
    if not isinstance(value, dict) or not 2 <= len(value) <= _MAX_VARIANTS:  # noqa: PLR2004  a comparison needs two
        raise ConfigError(key, value, "a table of at least two variants with their shares")
    for name in value:
        _parse_name(key, name)
    return MappingProxyType(parse_shares(key, value))


def parse_metric_specs(key: str, value: object) -> tuple[MetricSpec, ...]:
    """Return the metrics of a list of names; raises `ConfigError` for the first invalid name."""
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_METRICS:
        raise ConfigError(key, value, f"a list of 1 to {_MAX_METRICS} metrics")
    metrics = []
    for name in value:
        match = _METRIC_NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] not in _MEASURES or int(match[2]) > _MAX_K:
            raise ConfigError(
                key, name, f"{', '.join(f'{measure}@k' for measure in _MEASURES)}, with k from 1 to {_MAX_K}"
            )
        metrics.append(MetricSpec(name, cast(Any, match[1]), int(match[2])))
    if len(set(metrics)) < len(metrics):
        raise ConfigError(key, value, "every metric once")
    return tuple(metrics)


def _parse_gain(key: str, value: object) -> NamedGain | Mapping[float, float]:
    if not isinstance(value, dict):
        name: NamedGain = parse_choice(key, value, get_args(NamedGain))
        return name
    table: dict[float, float] = {}
    for name, gain in value.items():
        try:
            grade = parse_number(key, float(name), 0.0, MAX_GAIN)
        except (ValueError, ConfigError):
            raise ConfigError(key, name, "grades as keys, such as { 0 = 0, 1 = 1, 2 = 3 }") from None
        if grade in table:
            raise ConfigError(key, name, "every grade once")
        table[grade] = parse_number(f"{key}.{name}", gain, 0.0, MAX_GAIN)
    gains = [table[grade] for grade in sorted(table)]
    if gains != sorted(gains) or not gains:
        raise ConfigError(key, value, "gains that do not fall as the grade rises")
    return MappingProxyType(table)


def _parse_grades(key: str, value: object, max_grade: float) -> Mapping[str, GradeRule]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, value, "a table of kinds of feedback and their grades")
    rules: dict[str, GradeRule] = {}
    for kind, rule in value.items():
        kind_key = f"{key}.{kind}"
        if not 0 < len(kind) <= _MAX_KIND_LENGTH or kind[0] == "+":
            raise ConfigError(kind_key, rule, f"a kind of 1 to {_MAX_KIND_LENGTH} characters, the first not +")
        if rule == "score":
            rules[kind] = "score"
        elif isinstance(rule, list):
            rules[kind] = _parse_grade_thresholds(kind_key, rule, max_grade)
        elif isinstance(rule, (int, float)):
            rules[kind] = parse_number(kind_key, rule, 0.0, max_grade)
        else:
            raise ConfigError(kind_key, rule, '"score", a grade, or a list of [threshold, grade] pairs')
    return MappingProxyType(rules)


def _parse_grade_thresholds(key: str, rule: list[object], max_grade: float) -> tuple[tuple[float, float], ...]:
    thresholds = []
    for pair in rule:
        if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004  a pair
            raise ConfigError(key, rule, "a list of [threshold, grade] pairs")
        thresholds.append((parse_number(key, pair[0], 0.0, 1e12), parse_number(key, pair[1], 0.0, max_grade)))
    if not thresholds or any(low[0] >= high[0] for low, high in pairwise(thresholds)):
        raise ConfigError(key, rule, "thresholds that rise")
    return tuple(thresholds)


def _parse_decays(key: str, value: object) -> tuple[DecaySpec, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DECAYS:
        raise ConfigError(key, value, f"a list of at most {_MAX_DECAYS} half-lives")
    decays = []
    for name in value:
        match = _RECIPROCAL_DECAY.fullmatch(name) if isinstance(name, str) else None
        if match is not None:
            decays.append(DecaySpec(name, None, int(match[1]) * DAY_MS))
            continue
        try:
            half_life_ms = parse_duration_ms(key, name)
        except ConfigError:
            raise ConfigError(key, name, 'half-lives such as "1h" or "24h", or "reciprocal-10d"') from None
        if not _MIN_HALF_LIFE_MS <= half_life_ms <= 365 * DAY_MS:
            raise ConfigError(key, name, "half-lives from 1s to 365d")
        decays.append(DecaySpec(str(name), half_life_ms))
    if len({decay.name for decay in decays}) < len(decays):
        raise ConfigError(key, value, "every half-life once")
    return tuple(decays)


def _parse_categories(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_CATEGORIES:
        raise ConfigError(key, value, f"a list of at most {_MAX_CATEGORIES} names")
    names = tuple(_parse_name(key, name) for name in value)
    if len(set(names)) < len(names) or OTHER_CATEGORY in names or NO_CATEGORY in names:
        raise ConfigError(
            key, value, f"every category once, and not {OTHER_CATEGORY} or {NO_CATEGORY}, which stand for the rest"
        )
    return names


def _parse_pre_period_ms(key: str, value: object, starts_at_ms: int | None) -> int | None:
    if value is None:
        return None
    length_ms = parse_duration_ms(key, value)
    if starts_at_ms is None or length_ms > starts_at_ms:
        raise ConfigError(key, value, "starts_at as well, because the pre-period ends there")
    return length_ms


def _parse_drift(key: str, value: object, categories: Sequence[str]) -> DriftSettings:
    if not isinstance(value, dict) or any(name not in _DRIFT_KEYS for name in value):
        raise ConfigError(key, value, f"a table with {', '.join(_DRIFT_KEYS)}")
    default = DriftSettings()
    reference = _parse_drift_reference(
        f"{key}.reference", value.get("reference", default.reference), "category → responses"
    )
    if not isinstance(reference, int):
        allowed_categories = (*categories, OTHER_CATEGORY, NO_CATEGORY)
        for name in reference:
            if name not in allowed_categories:
                raise ConfigError(
                    f"{key}.reference: {value['reference']}",
                    name,
                    f"one of the declared categories: {', '.join(allowed_categories)}",
                )
    days = reference if isinstance(reference, int) else default.items_reference
    return DriftSettings(
        reference=reference,
        items_reference=_parse_drift_reference(
            f"{key}.items_reference", value.get("items_reference", days), "item → times shown"
        ),
        alpha=parse_number(f"{key}.alpha", value.get("alpha", default.alpha), *_DRIFT_ALPHA_RANGE),
    )


def _parse_drift_reference(key: str, value: object, counts_format: str) -> int | Mapping[str, int]:
    """Return a number of days, or the counts in a JSON file; `counts_format` describes the file's object."""
    if not isinstance(value, str):
        return parse_integer(key, value, 1, _MAX_REFERENCE_DAYS)
    path = value
    expected = f"the days of the reference, or a file of one JSON object: {counts_format}, 0 to {_MAX_OBSERVATIONS}"
    try:
        counts = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(key, path, f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, path, expected) from error
    if not isinstance(counts, dict) or not any(counts.values()):
        raise ConfigError(key, path, expected)
    for name in counts:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{key}: {path}", ascii(name), "a name of whole characters") from error
    return MappingProxyType(
        {name: parse_integer(f"{key}: {path}: {name}", count, 0, _MAX_OBSERVATIONS) for name, count in counts.items()}
    )


def _parse_items(key: str, value: object) -> ItemSettings | None:
    if value is None:
        return None
    table: dict[str, Any] = value if isinstance(value, dict) else {"horizon": value}
    check_keys(key, table, _ITEM_KEYS)
    horizon_ms = parse_duration_ms(f"{key}.horizon", table.get("horizon"))
    if horizon_ms % DAY_MS or horizon_ms > _MAX_HORIZON_DAYS * DAY_MS:
        raise ConfigError(f"{key}.horizon", table.get("horizon"), f"whole days, at most {_MAX_HORIZON_DAYS}")
    catalogue = None
    if "catalogue" in table:
        catalogue = _parse_catalogue(f"{key}.catalogue", table["catalogue"])
    return ItemSettings(
        horizon_ms // DAY_MS,
        catalogue=catalogue,
        sample_one_in=parse_integer(f"{key}.sample_one_in", table.get("sample_one_in", 1), 1, _MAX_SAMPLE_ONE_IN),
        expected_items=len(catalogue)
        if catalogue
        else parse_integer(f"{key}.expected_items", table.get("expected_items", 10_000), 1, _MAX_ITEMS),
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


def _parse_catalogue(key: str, value: object) -> frozenset[str]:
    path = parse_text(key, value)
    ids = read_lines(key, path)
    if not 0 < len(ids) <= _MAX_ITEMS:
        raise ConfigError(key, path, f"a file with 1 to {_MAX_ITEMS} ids, one per line")
    return ids


def _parse_optional_instant_ms(key: str, value: object) -> int | None:
    return None if value is None else parse_instant_ms(key, value)


def _check_gains(experiment_key: str, experiment: ExperimentSettings) -> None:
    """Raise `ConfigError` for a grade without a gain, and for gains that are too large for fixed-point sums."""
    gain, max_grade = experiment.gain, experiment.max_grade
    if not isinstance(gain, str):
        needed_grades = {max_grade}
        for rule in experiment.grades.values():
            if isinstance(rule, tuple):
                needed_grades |= {grade for _, grade in rule}
            elif not isinstance(rule, str):
                needed_grades.add(rule)
        for grade in sorted(needed_grades):
            if grade not in gain:
                raise ConfigError(f"{experiment_key}.gain", dict(gain), f"a gain for the grade {grade:g}")
        if max(gain) > max_grade:
            raise ConfigError(f"{experiment_key}.gain", dict(gain), f"no grade above max_grade = {max_grade:g}")
    max_gain = max_grade if gain == "linear" else 2.0**max_grade - 1 if gain == "exp2" else gain[max_grade]
    max_k = max((metric.k for metric in experiment.metrics if metric.measure in ("cg", "dcg")), default=1)
    if max_gain * max_k > MAX_GAIN:
        raise ConfigError(
            f"{experiment_key}.max_grade",
            max_grade,
            f"gain(max_grade) · k of at most {MAX_GAIN:.0f} (it is {max_gain * max_k:g})",
        )


def aggregate_definitions(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return the settings that the stored aggregates of an experiment depend on, as JSON.

    These settings are left out because they concern only display, decisions or retention: control, shares,
    allowed_lateness, retention, `DriftSettings`, `DecisionSettings`. Exceptions are the guardrail metrics with separate
    sums, and the primary metric if subgroups or the pre-period have sums of that metric.
    """
    gain, pre_period_ms = experiment.gain, experiment.pre_period_ms
    return {
        **({"watched": list(experiment.guardrail_only_metrics)} if experiment.guardrail_only_metrics else {}),
        **({"primary": experiment.primary} if any((experiment.categories, experiment.novelty, pre_period_ms)) else {}),
        **({"novelty": True} if experiment.novelty else {}),
        **({"pre_period_ms": pre_period_ms} if pre_period_ms else {}),
        "variants": sorted(experiment.variants),
        "metrics": [metric.name for metric in experiment.metrics],
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
        "categories": sorted(experiment.categories),
        "items": _item_definitions(experiment.items),
        "exposure_days": experiment.exposure_days,
        "decay": sorted(decay.name for decay in experiment.decay),
        "starts_at_ms": experiment.starts_at_ms,
        "ends_at_ms": experiment.ends_at_ms,
    }


def definition_differences(experiment_name: str, stored: Mapping[str, Any], configured: Mapping[str, Any]) -> list[str]:
    """Return a line for each definition of an experiment that differs between the store and the settings (JSON)."""
    return [
        f"{experiment_name}.{key}: the store was made with {stored.get(key)!r}, this file says {configured.get(key)!r}"
        for key in sorted({*stored, *configured})
        if stored.get(key) != configured.get(key)
    ]
