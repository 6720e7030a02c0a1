"""The keys of an `[[experiments]]` table that a verdict goes by → `DecisionSettings`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from monitor.config.settings import (
    FEEDBACK,
    LATENCY,
    RATED_SHARE,
    AllocationSettings,
    DecisionSettings,
    Direction,
    ExperimentSettings,
    GuardrailSettings,
    Population,
    is_share,
)
from monitor.config.values import check_keys, number, one_of, parse_instant_ms, shares
from monitor.errors import ConfigError

DECISION_KEYS: Final = frozenset({"mde", "margin", "alpha", "min_days", "population", "allocations", "guardrails"})
_DEFAULT: Final = DecisionSettings()
_SMALLEST: Final = 1e-6
_LARGEST: Final = 65_536.0
_BOUNDED: Final = ("ndcg", "success", "rr", "p")
_ALPHAS: Final = (1e-6, 0.25)
_LONGEST_DAYS: Final = 365.0
_DAY_MS: Final = 86_400_000
_MOST_ALLOCATIONS: Final = 100
_MOST_GUARDRAILS: Final = 20
_LONGEST_LATENCY_MS: Final = 86_400_000.0
_LONGEST_KIND: Final = 64


def decision_from(table: Mapping[str, Any], where: str, experiment: ExperimentSettings) -> DecisionSettings:
    """Return what an experiment's table says about verdicts; raises `ConfigError` for the first value that is wrong."""
    largest = _largest(experiment.primary)
    mde = table.get("mde")
    return DecisionSettings(
        mde=None if mde is None else number(f"{where}.mde", mde, _SMALLEST, largest),
        margin=number(f"{where}.margin", table.get("margin", _DEFAULT.margin), 0.0, largest),
        alpha=number(f"{where}.alpha", table.get("alpha", _DEFAULT.alpha), *_ALPHAS),
        min_days=number(f"{where}.min_days", table.get("min_days", _DEFAULT.min_days), 0.0, _LONGEST_DAYS),
        population=one_of(f"{where}.population", table.get("population", "rated"), get_args(Population)),
        allocations=_allocations(f"{where}.allocations", table.get("allocations", []), experiment),
        guardrails=_guardrails(f"{where}.guardrails", table["guardrails"], experiment)
        if "guardrails" in table
        else _DEFAULT.guardrails,
    )


def decision_warnings(experiment: ExperimentSettings) -> list[str]:
    """Return what is allowed, but will not do what it may have been meant to do; a sentence each."""
    where = f"experiments.{experiment.name}"
    return [
        f"{where}.allocations[{index}].from is no UTC midnight: the whole day is left out of the "
        "sample ratio and of the comparisons that decide"
        for index, allocation in enumerate(experiment.decision.allocations)
        if allocation.from_ms % _DAY_MS
    ] + [
        f"{where}.guardrails[{index}] watches {LATENCY} without worst: say when an answer is given up, such as "
        "worst = 30000 (ms), or time-outs that are too rare to have been seen yet are in none of its bounds"
        for index, rail in enumerate(experiment.decision.guardrails)
        if rail.metric == LATENCY and rail.worst_ms is None
    ]


def _largest(metric: str) -> float:
    """Return a bound of what an effect on the metric can be: 1 for shares, the largest gain for the others."""
    if metric == LATENCY:
        return _LONGEST_LATENCY_MS
    return 1.0 if is_share(metric) or metric.partition("@")[0] in _BOUNDED else _LARGEST


def _tables(key: str, value: object, keys: Collection[str], most: int) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(each, dict) for each in value):
        raise ConfigError(key, value, f"a list of at most {most} tables with {' and '.join(sorted(keys))}")
    for index, table in enumerate(value):
        check_keys(f"{key}[{index}]", table, keys)
    return value


def _allocations(key: str, value: object, experiment: ExperimentSettings) -> tuple[AllocationSettings, ...]:
    found: list[AllocationSettings] = []
    for index, table in enumerate(_tables(key, value, {"from", "shares"}, _MOST_ALLOCATIONS)):
        where = f"{key}[{index}]"
        from_ms, after_ms = parse_instant_ms(f"{where}.from", table.get("from")), experiment.starts_at_ms or 0
        if found:
            after_ms = found[-1].from_ms
        if from_ms <= after_ms:
            before = "the allocation before it" if found else "starts_at"
            raise ConfigError(f"{where}.from", str(table["from"]), f"a time after that of {before}")
        if experiment.ends_at_ms is not None and from_ms >= experiment.ends_at_ms:
            raise ConfigError(f"{where}.from", str(table["from"]), "a time before ends_at")
        found.append(AllocationSettings(from_ms, _shares(f"{where}.shares", table.get("shares"), experiment)))
    return tuple(found)


def _shares(key: str, value: object, experiment: ExperimentSettings) -> Mapping[str, float]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, value, "a table of variants with their shares")
    for name in value:
        one_of(key, name, experiment.variants)
    return MappingProxyType(shares(key, value))


def _guardrails(key: str, value: object, experiment: ExperimentSettings) -> tuple[GuardrailSettings, ...]:
    metrics = (*(metric.name for metric in experiment.metrics), RATED_SHARE, LATENCY)
    found: list[GuardrailSettings] = []
    for index, table in enumerate(_tables(key, value, {"metric", "bad", "margin", "worst"}, _MOST_GUARDRAILS)):
        where = f"{key}[{index}]"
        metric = _watchable(f"{where}.metric", table.get("metric"), metrics)
        bad = one_of(f"{where}.bad", table.get("bad"), get_args(Direction))
        margin = number(f"{where}.margin", table.get("margin"), _SMALLEST, _largest(metric))
        if any(each.metric == metric for each in found):
            raise ConfigError(f"{where}.metric", metric, "every metric once")
        found.append(GuardrailSettings(metric, bad, margin, _worst_ms(f"{where}.worst", table, metric)))
    return tuple(found)


def _worst_ms(key: str, table: Mapping[str, Any], metric: str) -> float | None:
    if "worst" not in table:
        return None
    if metric != LATENCY:
        raise ConfigError(key, table["worst"], f"this key with {LATENCY} only: other metrics have a largest value")
    return number(key, table["worst"], 1.0, _LONGEST_LATENCY_MS)


def _watchable(key: str, value: object, metrics: Collection[str]) -> str:
    """Return what a guardrail watches: one of the metrics, or a kind of feedback, declared or not."""
    if isinstance(value, str) and value.startswith(FEEDBACK):
        kind = value.removeprefix(FEEDBACK)
        if not 0 < len(kind) <= _LONGEST_KIND or kind[0] == "+":
            raise ConfigError(key, value, f"{FEEDBACK} and a kind of 1 to {_LONGEST_KIND} characters, the first not +")
        return value
    return one_of(key, value, (*metrics, f"{FEEDBACK}KIND"))
