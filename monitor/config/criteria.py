"""Parses the keys of an `[[experiments]]` table that are criteria of verdicts → `DecisionSettings`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args
from zoneinfo import ZoneInfo

from monitor.config.metric_tables import (
    ANSWER_FORMATS,
    MAX_LATENCY_MS,
    STUDENT_FORMATS,
    check_student_metric,
    current_metric_name,
    is_student_metric,
    parse_answer_metric,
)
from monitor.config.settings import (
    LATENCY_METRIC,
    RATED_SHARE_METRIC,
    AllocationSettings,
    DecisionSettings,
    ExperimentSettings,
    GuardrailSettings,
    HarmfulDirection,
    Population,
    is_proportion,
)
from monitor.config.values import (
    ConfigProblems,
    check_keys,
    parse_choice,
    parse_instant_ms,
    parse_number,
    parse_shares,
    rename_misspelt_keys,
)
from monitor.days import UTC_ZONE
from monitor.errors import ConfigError

Setting = TypeVar("Setting")

DECISION_KEYS: Final = frozenset({"mde", "margin", "alpha", "min_days", "population", "allocations", "guardrails"})
_ALLOCATION_KEYS: Final = frozenset({"from", "shares"})
_GUARDRAIL_KEYS: Final = frozenset({"metric", "harmful_direction", "margin", "relative_margin", "timeout_ms"})
_MIN_EFFECT: Final = 1e-6
_MAX_EFFECT: Final = 65_536.0
_MEASURES_UP_TO_1: Final = ("ndcg", "success", "rr", "p")
_MIN_ALPHA: Final = 1e-6
_MAX_ALPHA: Final = 0.25
_MAX_RELATIVE_MARGIN: Final = 1.0
_MAX_DAYS: Final = 365.0
_MAX_ALLOCATIONS: Final = 100
_MAX_GUARDRAILS: Final = 20


def parse_decision(table: Mapping[str, Any], experiment_key: str, experiment: ExperimentSettings) -> DecisionSettings:
    """Return the criteria of an experiment's table; raises the errors of all wrong values."""
    max_effect = _max_effect(experiment.primary, experiment)
    parsers: dict[str, Callable[[str, Any], Any]] = {
        "mde": partial(parse_number, minimum=_MIN_EFFECT, maximum=max_effect),
        "margin": partial(parse_number, minimum=0.0, maximum=max_effect),
        "alpha": partial(parse_number, minimum=_MIN_ALPHA, maximum=_MAX_ALPHA),
        "min_days": partial(parse_number, minimum=0.0, maximum=_MAX_DAYS),
        "population": partial(parse_choice, choices=get_args(Population)),
        "allocations": partial(_parse_allocations, experiment=experiment),
        "guardrails": partial(_parse_guardrails, experiment=experiment),
    }
    problems = ConfigProblems()
    values = {
        name: problems.attempt(parse, f"{experiment_key}.{name}", table[name], None)
        for name, parse in parsers.items()
        if name in table
    }
    problems.raise_errors()
    primary = next((metric for metric in experiment.metrics if metric.name == experiment.primary), None)
    if "guardrails" not in table and primary is not None and experiment.other_population is None:
        values["guardrails"] = ()  # Every response has a value of the primary metric, whether it is rated or not.
    return DecisionSettings(**values)


def decision_warnings(experiment: ExperimentSettings) -> list[str]:
    """Return a sentence for each criterion that is valid but probably has another effect than intended."""
    return [f"experiments.{experiment.name}.{warning}" for warning in _find_doubtful_criteria(experiment)]


def _find_doubtful_criteria(experiment: ExperimentSettings) -> Iterator[str]:
    """Yield the key of each doubtful criterion and the reason."""
    if experiment.primary.startswith("ndcg") and experiment.ideal == "shown":
        yield (
            f'primary is {experiment.primary} with ideal = "shown": each response is compared with the best order of '
            "its own items, so a variant that shows only bad items is not penalised. Set primary to a dcg metric, or "
            'ideal to "constant"'
        )
    for index, allocation in enumerate(experiment.decision.allocations):
        if not experiment.calendar.is_start(allocation.from_ms):
            yield (
                f"allocations[{index}].from is not midnight in {experiment.day_zone}: the whole day is left out of the "
                "sample ratio and of the comparisons that decide. Set the time to midnight, such as "
                f"{_next_midnight(experiment, allocation.from_ms)}"
            )
    starts_at_ms = experiment.starts_at_ms
    if starts_at_ms is not None and experiment.day_zone != UTC_ZONE and not experiment.calendar.is_start(starts_at_ms):
        yield (
            f"starts_at is not midnight in {experiment.day_zone}: the first day is shorter. Set the time to midnight, "
            f"such as {_next_midnight(experiment, starts_at_ms)}"
        )
    for index, guardrail in enumerate(experiment.decision.guardrails):
        if guardrail.metric == LATENCY_METRIC and guardrail.timeout_ms is None:
            yield (
                f"guardrails[{index}] is on {LATENCY_METRIC} without timeout_ms: the guardrail cannot allow for rare "
                "time-outs that have not occurred yet. Set timeout_ms to the time-out of the chatbot, such as 30000"
            )


def _next_midnight(experiment: ExperimentSettings, time_ms: int) -> str:
    """Return the end of the day of a time, in ISO 8601 with the offset of the day's zone."""
    end_ms = experiment.calendar.end_ms(experiment.calendar.day_number(time_ms))
    return datetime.fromtimestamp(end_ms / 1000, ZoneInfo(experiment.day_zone)).isoformat()


def _max_effect(metric: str, experiment: ExperimentSettings) -> float:
    """Return a bound of the effect on a metric: 1 for shares, the range of answer metrics, or the largest gain.

    The bound of an unknown metric, "", is the largest.
    """
    for answer_metric in experiment.answer_metrics:
        if answer_metric.name == metric:
            return answer_metric.most - answer_metric.least
    if not metric:
        return MAX_LATENCY_MS
    return 1.0 if is_proportion(metric) or metric.partition("@")[0] in _MEASURES_UP_TO_1 else _MAX_EFFECT


def _parse_tables(key: str, value: object, allowed_keys: Collection[str], max_count: int) -> list[dict[str, Any]]:
    """Return a list of at most `max_count` tables; the keys of a table are not checked."""
    if not isinstance(value, list) or len(value) > max_count or not all(isinstance(table, dict) for table in value):
        raise ConfigError(
            key, value, f"a list of at most {max_count} tables with the keys {', '.join(sorted(allowed_keys))}"
        )
    return value


def _parse_allocations(key: str, value: object, experiment: ExperimentSettings) -> tuple[AllocationSettings, ...]:
    """Return the allocations of a list of tables; raises the errors of all tables."""
    problems = ConfigProblems()
    allocations: list[AllocationSettings] = []
    previous, previous_ms = "starts_at", experiment.starts_at_ms or 0
    for index, table in enumerate(_parse_tables(key, value, _ALLOCATION_KEYS, _MAX_ALLOCATIONS)):
        with problems.collect():
            check_keys(f"{key}[{index}]", table, _ALLOCATION_KEYS)
        values = rename_misspelt_keys(table, _ALLOCATION_KEYS)
        shares: Mapping[str, float] = problems.attempt(
            partial(_parse_variant_shares, experiment=experiment), f"{key}[{index}].shares", values.get("shares"), {}
        )
        with problems.collect():
            from_key = f"{key}[{index}].from"
            from_ms = parse_instant_ms(from_key, values.get("from"))
            if from_ms <= previous_ms:
                raise ConfigError(from_key, values["from"], f"a time after {previous}")
            if experiment.ends_at_ms is not None and from_ms >= experiment.ends_at_ms:
                raise ConfigError(from_key, values["from"], "a time before ends_at")
            previous, previous_ms = "the time of the previous allocation", from_ms
            allocations.append(AllocationSettings(from_ms, shares))
    problems.raise_errors()
    return tuple(allocations)


def _parse_variant_shares(key: str, value: object, experiment: ExperimentSettings) -> Mapping[str, float]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, value, "a table of variants with their shares")
    problems = ConfigProblems()
    if experiment.variants:  # Without, the declared variants are wrong.
        for name in value:
            with problems.collect():
                parse_choice(key, name, experiment.variants)
    shares: Mapping[str, float] = {}
    with problems.collect():
        shares = parse_shares(key, value)
    problems.raise_errors()
    return MappingProxyType(shares)


def _parse_guardrails(key: str, value: object, experiment: ExperimentSettings) -> tuple[GuardrailSettings, ...]:
    """Return the guardrails of a list of tables; raises the errors of all tables."""
    problems = ConfigProblems()
    guardrails: list[GuardrailSettings] = []
    tables = _parse_tables(key, value, _GUARDRAIL_KEYS, _MAX_GUARDRAILS)
    for index, table in enumerate(tables):
        with problems.collect():
            guardrails.append(_parse_guardrail(f"{key}[{index}]", table, experiment))
        metric = table.get("metric")
        earlier_names = [current_metric_name(other.get("metric")) for other in tables[:index]]
        if metric is not None and current_metric_name(metric) in earlier_names:
            problems.errors.append(ConfigError(f"{key}[{index}].metric", metric, "every metric once"))
    problems.raise_errors()
    return tuple(guardrails)


def _parse_guardrail(key: str, table: Mapping[str, Any], experiment: ExperimentSettings) -> GuardrailSettings:
    """Return the guardrail of a table; raises the errors of all its keys."""
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, table, _GUARDRAIL_KEYS)
    table = rename_misspelt_keys(table, _GUARDRAIL_KEYS)

    def read(parse: Callable[[str, object], Setting], name: str, fallback: Setting) -> Setting:
        return problems.attempt(parse, f"{key}.{name}", table.get(name), fallback)

    metric: str = read(partial(_parse_guardrail_metric, experiment=experiment), "metric", "")
    parse_direction = partial(parse_choice, choices=get_args(HarmfulDirection))
    direction: HarmfulDirection = read(parse_direction, "harmful_direction", "up")
    if direction == "down" and any(spec.name == metric and spec.lower_is_better for spec in experiment.metrics):
        problems.errors.append(
            ConfigError(f"{key}.harmful_direction", direction, f"up, because a fall of {metric} harms nobody")
        )
    is_relative = "relative_margin" in table
    if is_relative and "margin" in table:
        problems.errors.append(
            ConfigError(f"{key}.relative_margin", table["relative_margin"], "margin or relative_margin")
        )
    name, max_margin = (
        ("relative_margin", _MAX_RELATIVE_MARGIN) if is_relative else ("margin", _max_effect(metric, experiment))
    )
    margin = read(partial(parse_number, minimum=_MIN_EFFECT, maximum=max_margin), name, 0.0)
    timeout_ms = read(partial(_parse_timeout_ms, metric=metric, experiment=experiment), "timeout_ms", None)
    problems.raise_errors()
    return GuardrailSettings(metric, direction, margin, timeout_ms, is_relative)


def _parse_timeout_ms(key: str, value: object, metric: str, experiment: ExperimentSettings) -> float | None:
    if value is None:
        return None
    if metric not in (LATENCY_METRIC, ""):
        raise ConfigError(key, value, f"no timeout_ms, because only a guardrail on {LATENCY_METRIC} has one")
    timeout_ms = parse_number(key, value, 1.0, MAX_LATENCY_MS)
    for answer_metric in experiment.answer_metrics:
        if answer_metric.name == metric and timeout_ms > answer_metric.most:
            raise ConfigError(key, value, f"at most {answer_metric.most:g}, where latencies are capped (ranges)")
    return timeout_ms


def _parse_guardrail_metric(key: str, value: object, experiment: ExperimentSettings) -> str:
    """Return a guardrail's metric: a metric of the experiment, an answer metric, or one that is a guardrail only.

    An experiment without metrics, because the metrics are wrong, may have any metric.
    """
    if isinstance(value, str) and is_student_metric(value):
        check_student_metric(key, value, experiment.metrics, experiment.exposure_days)
        return value
    metric = parse_answer_metric(key, value) if isinstance(value, str) else None
    if metric is not None:
        return metric.name
    if not experiment.metrics and isinstance(value, str) and "@" in value:
        return value
    names = [metric.name for metric in experiment.metrics if metric.is_ranking]
    return parse_choice(key, value, (*names, RATED_SHARE_METRIC, *ANSWER_FORMATS, *STUDENT_FORMATS))
