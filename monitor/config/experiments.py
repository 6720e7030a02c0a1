"""One `[[experiments]]` table → `ExperimentSettings`, and the part of it that stored aggregates depend on."""

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

from monitor.config.criteria import DECISION_KEYS, decision_from, decision_warnings
from monitor.config.settings import (
    NONE,
    OTHER,
    DecaySpec,
    Discount,
    DriftSettings,
    ExperimentSettings,
    Gain,
    GradeRule,
    Ideal,
    ItemSettings,
    MetricSpec,
)
from monitor.config.values import (
    check_keys,
    duration_ms,
    integer,
    lines_of,
    number,
    one_of,
    parse_instant_ms,
    shares,
    switch,
    text,
)
from monitor.errors import ConfigError

_KEYS: Final = {
    "name", "control", "variants", "starts_at", "ends_at", "metrics", "primary", "gain", "discount", "ideal",
    "max_grade", "relevant_grade", "grades", "feedback_window", "allowed_lateness", "retention", "decay",
    "categories", "drift", "items", "exposure_days", "novelty", "pre_period", *DECISION_KEYS,
}  # fmt: skip
_MEASURES: Final = ("cg", "dcg", "ndcg", "success", "rr", "p")
_METRIC: Final = re.compile(r"([a-z]+)@([1-9][0-9]{0,2})")
_RECIPROCAL: Final = re.compile(r"reciprocal-([1-9][0-9]{0,2})d")
_LONGEST_NAME: Final = 100
_LONGEST_KIND: Final = 64
_DEEPEST: Final = 100
LARGEST_GAIN: Final = 65_536.0
_LARGEST_EXPONENT: Final = 16.0
_MOST_DECAYS: Final = 6
_MOST_VARIANTS: Final = 255
_MOST_METRICS: Final = 20
_MOST_CATEGORIES: Final = 100
_DAY_MS: Final = 86_400_000
_ITEM_KEYS: Final = ("catalogue", "horizon", "most", "one_in")
_LONGEST_DAYS: Final = 365
_MOST_ITEMS: Final = 10_000_000
_MOST_SHARES: Final = 1_000_000
_DRIFT_KEYS: Final = ("alpha", "items_reference", "reference")
_DRIFT_ALPHAS: Final = (0.001, 0.25)
_MOST_DAYS: Final = 90
_MOST_OBSERVATIONS: Final = 10**8
_SHORTEST_MS: Final = 1000
_LEFT_OUT: Final = 2.0**-9
"""Part of a decayed mean's weight that may be older than `retention`."""


def experiment_from(table: Mapping[str, Any], index: int) -> ExperimentSettings:
    """Return an experiment; raises `ConfigError` for the first value that is wrong."""
    where = f"experiments[{index}]"
    if "name" not in table:
        raise ConfigError(f"{where}.name", None, "a name")
    name = _name(f"{where}.name", table["name"])
    where = f"experiments.{name}"
    check_keys(where, table, _KEYS)
    variants = _variants(f"{where}.variants", table.get("variants"))
    metrics = metric_specs(f"{where}.metrics", table.get("metrics", ["dcg@5", "ndcg@5", "success@5"]))
    names = [metric.name for metric in metrics]
    gain = _gain(f"{where}.gain", table.get("gain", "linear"))
    largest = _LARGEST_EXPONENT if gain == "exp2" else LARGEST_GAIN
    max_grade = number(f"{where}.max_grade", table.get("max_grade", 4), 0.001, largest)
    starts_at_ms = _instant(f"{where}.starts_at", table.get("starts_at"))
    ends_at_ms = _instant(f"{where}.ends_at", table.get("ends_at"))
    categories = _categories(f"{where}.categories", table.get("categories", []))
    if starts_at_ms is not None and ends_at_ms is not None and ends_at_ms <= starts_at_ms:
        raise ConfigError(f"{where}.ends_at", str(table["ends_at"]), "a time after starts_at")
    experiment = ExperimentSettings(
        name=name,
        control=one_of(f"{where}.control", table.get("control"), variants),
        variants=variants,
        starts_at_ms=starts_at_ms,
        ends_at_ms=ends_at_ms,
        metrics=metrics,
        primary=one_of(f"{where}.primary", table.get("primary", "dcg@5" if "dcg@5" in names else names[0]), names),
        gain=gain,
        discount=one_of(f"{where}.discount", table.get("discount", "log2"), get_args(Discount)),
        ideal=one_of(f"{where}.ideal", table.get("ideal", "shown"), get_args(Ideal)),
        max_grade=max_grade,
        relevant_grade=number(
            f"{where}.relevant_grade", table.get("relevant_grade", min(3, max_grade)), 0.0, max_grade
        ),
        grades=_grades(f"{where}.grades", table.get("grades", {"rating": "score"}), max_grade),
        feedback_window_ms=duration_ms(f"{where}.feedback_window", table.get("feedback_window", "24h")),
        allowed_lateness_ms=duration_ms(f"{where}.allowed_lateness", table.get("allowed_lateness", "7d")),
        retention_ms=duration_ms(f"{where}.retention", table.get("retention", "30d")),
        decay=_decays(f"{where}.decay", table.get("decay", ["1h", "24h"])),
        categories=categories,
        items=_items(f"{where}.items", table.get("items")),
        drift=_drift(f"{where}.drift", table.get("drift", {}), categories),
        exposure_days=integer(f"{where}.exposure_days", table.get("exposure_days", 3), 1, 90),
        novelty=switch(f"{where}.novelty", table.get("novelty", False)),
        pre_period_ms=_pre_period(f"{where}.pre_period", table.get("pre_period"), starts_at_ms),
    )
    experiment = replace(experiment, decision=decision_from(table, where, experiment))
    if variants[experiment.control] == 0:
        raise ConfigError(f"{where}.variants", dict(variants), "a share above 0 for the control")
    if experiment.retention_ms < experiment.horizon_ms:
        raise ConfigError(
            f"{where}.retention",
            table.get("retention", "30d"),
            "at least feedback_window + allowed_lateness: time buckets must not go while they can still change",
        )
    _check_bounds(where, experiment)
    return experiment


def experiment_warnings(experiments: Sequence[ExperimentSettings]) -> list[str]:
    """Return what is allowed, but will not do what it may have been meant to do; a sentence each."""
    return [
        *(warning for each in experiments for warning in decision_warnings(each)),
        *(
            f"experiments.{each.name}.decay: {decay.name} leaves out what is older than retention, up to "
            f"{left_out:.1%} of its weight: let retention be {needed} or more"
            for each in experiments
            for decay in each.decay
            for left_out, needed in [_left_out(decay, each.retention_ms)]
            if left_out > _LEFT_OUT
        ),
    ]


def _left_out(decay: DecaySpec, retention_ms: int) -> tuple[float, str]:
    """Return which part of the weight of steady traffic is older than `retention`, and how much would be enough."""
    if decay.half_life_ms is not None:
        return 2.0 ** (-retention_ms / decay.half_life_ms), f"{math.ceil(9 * decay.half_life_ms / _DAY_MS)}d"
    cutoff_days = (decay.cutoff_ms or 0) / _DAY_MS
    kept = math.log1p(min(retention_ms / _DAY_MS, cutoff_days)) / math.log1p(cutoff_days)
    return 1 - kept, f"{cutoff_days:g}d"


def _name(key: str, value: object) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _LONGEST_NAME
        or not value.isprintable()
        or value != value.strip()
    ):
        raise ConfigError(key, value, f"1 to {_LONGEST_NAME} printable characters without blanks around them")
    return value


def _variants(key: str, value: object) -> Mapping[str, float]:
    if not isinstance(value, dict) or not 2 <= len(value) <= _MOST_VARIANTS:  # noqa: PLR2004  a comparison needs two
        raise ConfigError(key, value, "a table of at least two variants with their shares")
    for name in value:
        _name(key, name)
    return MappingProxyType(shares(key, value))


def metric_specs(key: str, value: object) -> tuple[MetricSpec, ...]:
    """Return the metrics of a list of names; raises `ConfigError` for the first that is none."""
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_METRICS:
        raise ConfigError(key, value, f"a list of 1 to {_MOST_METRICS} metrics")
    metrics = []
    for name in value:
        match = _METRIC.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] not in _MEASURES or int(match[2]) > _DEEPEST:
            raise ConfigError(key, name, f"{', '.join(f'{each}@k' for each in _MEASURES)}, with k from 1 to {_DEEPEST}")
        metrics.append(MetricSpec(name, cast(Any, match[1]), int(match[2])))
    if len(set(metrics)) < len(metrics):
        raise ConfigError(key, value, "every metric once")
    return tuple(metrics)


def _gain(key: str, value: object) -> Gain | Mapping[float, float]:
    if not isinstance(value, dict):
        name: Gain = one_of(key, value, get_args(Gain))
        return name
    table: dict[float, float] = {}
    for name, gain in value.items():
        try:
            grade = number(key, float(name), 0.0, LARGEST_GAIN)
        except (ValueError, ConfigError):
            raise ConfigError(key, name, "grades as keys, such as { 0 = 0, 1 = 1, 2 = 3 }") from None
        if grade in table:
            raise ConfigError(key, name, "every grade once")
        table[grade] = number(f"{key}.{name}", gain, 0.0, LARGEST_GAIN)
    gains = [table[grade] for grade in sorted(table)]
    if gains != sorted(gains) or not gains:
        raise ConfigError(key, value, "gains that do not fall as the grade rises")
    return MappingProxyType(table)


def _grades(key: str, value: object, max_grade: float) -> Mapping[str, GradeRule]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, value, "a table of kinds of feedback and what they grade")
    rules: dict[str, GradeRule] = {}
    for kind, rule in value.items():
        where = f"{key}.{kind}"
        if not 0 < len(kind) <= _LONGEST_KIND or kind[0] == "+":
            raise ConfigError(where, rule, f"a kind of 1 to {_LONGEST_KIND} characters, the first not +")
        if rule == "score":
            rules[kind] = "score"
        elif isinstance(rule, list):
            rules[kind] = _steps(where, rule, max_grade)
        elif isinstance(rule, (int, float)):
            rules[kind] = number(where, rule, 0.0, max_grade)
        else:
            raise ConfigError(where, rule, '"score", a grade, or a list of [threshold, grade] pairs')
    return MappingProxyType(rules)


def _steps(key: str, rule: list[object], max_grade: float) -> tuple[tuple[float, float], ...]:
    steps = []
    for step in rule:
        if not isinstance(step, list) or len(step) != 2:  # noqa: PLR2004  a pair
            raise ConfigError(key, rule, "a list of [threshold, grade] pairs")
        steps.append((number(key, step[0], 0.0, 1e12), number(key, step[1], 0.0, max_grade)))
    if not steps or any(low[0] >= high[0] for low, high in pairwise(steps)):
        raise ConfigError(key, rule, "thresholds that rise")
    return tuple(steps)


def _decays(key: str, value: object) -> tuple[DecaySpec, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DECAYS:
        raise ConfigError(key, value, f"a list of at most {_MOST_DECAYS} half-lives")
    decays = []
    for name in value:
        match = _RECIPROCAL.fullmatch(name) if isinstance(name, str) else None
        if match is not None:
            decays.append(DecaySpec(name, None, int(match[1]) * _DAY_MS))
            continue
        try:
            half_life_ms = duration_ms(key, name)
        except ConfigError:
            raise ConfigError(key, name, 'half-lives such as "1h" or "24h", or "reciprocal-10d"') from None
        if not _SHORTEST_MS <= half_life_ms <= 365 * _DAY_MS:
            raise ConfigError(key, name, "half-lives from 1s to 365d")
        decays.append(DecaySpec(str(name), half_life_ms))
    if len({decay.name for decay in decays}) < len(decays):
        raise ConfigError(key, value, "every half-life once")
    return tuple(decays)


def _categories(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_CATEGORIES:
        raise ConfigError(key, value, f"a list of at most {_MOST_CATEGORIES} names")
    names = tuple(_name(key, name) for name in value)
    if len(set(names)) < len(names) or OTHER in names or NONE in names:
        raise ConfigError(key, value, f"every category once, and not {OTHER} or {NONE}, which stand for the rest")
    return names


def _pre_period(key: str, value: object, starts_at_ms: int | None) -> int | None:
    if value is None:
        return None
    length_ms = duration_ms(key, value)
    if starts_at_ms is None or length_ms > starts_at_ms:
        raise ConfigError(key, value, "starts_at beside it, which is where the time before the experiment ends")
    return length_ms


def _drift(key: str, value: object, categories: Sequence[str]) -> DriftSettings:
    if not isinstance(value, dict) or any(name not in _DRIFT_KEYS for name in value):
        raise ConfigError(key, value, f"a table with {', '.join(_DRIFT_KEYS)}")
    default = DriftSettings()
    reference = _days_or_counts(f"{key}.reference", value.get("reference", default.reference), "category → responses")
    if not isinstance(reference, int):
        known = (*categories, OTHER, NONE)
        for name in reference:
            if name not in known:
                place = f"{key}.reference: {value['reference']}"
                raise ConfigError(place, name, f"one of the declared categories: {', '.join(known)}")
    days = reference if isinstance(reference, int) else default.items_reference
    return DriftSettings(
        reference=reference,
        items_reference=_days_or_counts(
            f"{key}.items_reference", value.get("items_reference", days), "item → times shown"
        ),
        alpha=number(f"{key}.alpha", value.get("alpha", default.alpha), *_DRIFT_ALPHAS),
    )


def _days_or_counts(key: str, value: object, what: str) -> int | Mapping[str, int]:
    """Return a number of days, or the counts in a file of one JSON object."""
    if not isinstance(value, str):
        return integer(key, value, 1, _MOST_DAYS)
    path = value
    expected = f"the days of the reference, or a file of one JSON object: {what}, 0 to {_MOST_OBSERVATIONS}"
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(key, path, f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, path, expected) from error
    if not isinstance(found, dict) or not any(found.values()):
        raise ConfigError(key, path, expected)
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{key}: {path}", ascii(name), "a name of whole characters") from error
    return MappingProxyType(
        {name: integer(f"{key}: {path}: {name}", count, 0, _MOST_OBSERVATIONS) for name, count in found.items()}
    )


def _items(key: str, value: object) -> ItemSettings | None:
    if value is None:
        return None
    table: dict[str, Any] = value if isinstance(value, dict) else {"horizon": value}
    check_keys(key, table, _ITEM_KEYS)
    horizon_ms = duration_ms(f"{key}.horizon", table.get("horizon"))
    if horizon_ms % _DAY_MS or horizon_ms > _LONGEST_DAYS * _DAY_MS:
        raise ConfigError(f"{key}.horizon", table.get("horizon"), f"whole days, at most {_LONGEST_DAYS}")
    catalogue = None
    if "catalogue" in table:
        catalogue = _catalogue(f"{key}.catalogue", table["catalogue"])
    return ItemSettings(
        horizon_ms // _DAY_MS,
        catalogue=catalogue,
        one_in=integer(f"{key}.one_in", table.get("one_in", 1), 1, _MOST_SHARES),
        expected_items=len(catalogue)
        if catalogue
        else integer(f"{key}.most", table.get("most", 10_000), 1, _MOST_ITEMS),
    )


def _item_definitions(items: ItemSettings | None) -> dict[str, Any] | None:
    """Return what the stored counts of items depend on, as JSON."""
    if items is None:
        return None
    catalogue = None
    if items.catalogue is not None:
        catalogue = blake2b("\n".join(sorted(items.catalogue)).encode(), digest_size=8).hexdigest()
    return {"days": items.days, "catalogue": catalogue, "one_in": items.one_in, "most": items.expected_items}


def _catalogue(key: str, value: object) -> frozenset[str]:
    path = text(key, value)
    ids = lines_of(key, path)
    if not 0 < len(ids) <= _MOST_ITEMS:
        raise ConfigError(key, path, f"a file with 1 to {_MOST_ITEMS} ids, one per line")
    return ids


def _instant(key: str, value: object) -> int | None:
    return None if value is None else parse_instant_ms(key, value)


def _check_bounds(where: str, experiment: ExperimentSettings) -> None:
    """Refuse what the fixed-point sums could not hold, and grades that a gain table does not know."""
    gain, top = experiment.gain, experiment.max_grade
    if not isinstance(gain, str):
        needed = {top}
        for rule in experiment.grades.values():
            if isinstance(rule, tuple):
                needed |= {grade for _, grade in rule}
            elif not isinstance(rule, str):
                needed.add(rule)
        for grade in sorted(needed):
            if grade not in gain:
                raise ConfigError(f"{where}.gain", dict(gain), f"a gain for the grade {grade:g}")
        if max(gain) > top:
            raise ConfigError(f"{where}.gain", dict(gain), f"no grade above max_grade = {top:g}")
    best = top if gain == "linear" else 2.0**top - 1 if gain == "exp2" else gain[top]
    deepest = max((metric.k for metric in experiment.metrics if metric.measure in ("cg", "dcg")), default=1)
    if best * deepest > LARGEST_GAIN:
        raise ConfigError(
            f"{where}.max_grade", top, f"gain(max_grade) · k of at most {LARGEST_GAIN:.0f} (it is {best * deepest:g})"
        )


def definitions(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return what the stored aggregates of an experiment depend on, as JSON.

    Left out, because they only concern display, decisions or forgetting: control, shares, allowed_lateness, retention,
    what is in `DriftSettings` and `DecisionSettings`, but for what guardrails watch that needs sums of its own, and the
    primary metric, unless parts of students have sums of just that.
    """
    gain, before = experiment.gain, experiment.pre_period_ms
    return {
        **({"watched": list(experiment.watched)} if experiment.watched else {}),
        **({"primary": experiment.primary} if any((experiment.categories, experiment.novelty, before)) else {}),
        **({"novelty": True} if experiment.novelty else {}),
        **({"pre_period_ms": before} if before else {}),
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


def definition_differences(name: str, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return a readable line for each definition of an experiment in which two sets differ (both as JSON)."""
    return [
        f"{name}.{key}: the store was made with {stored.get(key)!r}, this file says {wanted.get(key)!r}"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
