"""Parses the keys of an `[[experiments]]` table that define metrics → `MetricSpec` records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, get_args

from monitor.config.settings import (
    EMPTY_METRIC,
    LATENCY_ABOVE_PREFIX,
    LATENCY_METRIC,
    PER_STUDENT_PREFIX,
    RETURN_DAYS_METRIC,
    SESSIONS_WITH_PREFIX,
    SHARE_PREFIX,
    STUDENT_METRICS,
    MetricSpec,
    RankingMeasure,
)
from monitor.config.values import ConfigProblems, parse_choice, parse_number, similar_name
from monitor.errors import ConfigError

METRIC_KEYS: Final = frozenset({"metrics", "ranges", "silence", "lower_is_better", "exclusive_kinds", "additive_kinds"})
RANKING_FORMATS: Final = tuple(f"{measure}@k" for measure in get_args(RankingMeasure))
ANSWER_FORMATS: Final = (
    "share:KIND", "share:KIND>=T", "score:KIND", "sum:KIND", LATENCY_METRIC, "latency_above_ms:T", "items_shown",
    EMPTY_METRIC,
)  # fmt: skip
STUDENT_FORMATS: Final = (*STUDENT_METRICS, f"{PER_STUDENT_PREFIX}METRIC", f"{SESSIONS_WITH_PREFIX}METRIC")
MAX_KIND_LENGTH: Final = 64
MAX_LATENCY_MS: Final = 86_400_000.0
_MAX_METRICS: Final = 20
_MAX_K: Final = 100
_MAX_GROUPS: Final = 20
_RANKING_NAME: Final = re.compile(r"([a-z]+)@([1-9][0-9]{0,2})")
_THRESHOLD: Final = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,6})?")
_THRESHOLD_MS: Final = re.compile("[1-9][0-9]{0,7}")
_PARAMETER_PREFIXES: Final = ("share", "score", "sum", "latency_above_ms")
_OLD_SHARE_PREFIX: Final = "feedback:"
"""The prefix of `share:KIND` in guardrails of earlier versions."""
_MAX_VALUE: Final = 65_536.0
"""The largest value of a score, a sum or a number of items."""
_LATENCY_CAP_MS: Final = 60_000.0
_MAX_LATENCY_CAP_MS: Final = 600_000.0
_ITEMS_CAP: Final = 100.0
_EVENT_METRICS: Final = {
    LATENCY_METRIC: MetricSpec(LATENCY_METRIC, "latency_ms", lower_is_better=True),
    "items_shown": MetricSpec("items_shown", "items_shown"),
    EMPTY_METRIC: MetricSpec(EMPTY_METRIC, "empty", lower_is_better=True),
}
_DEFAULT_RANGES: Final = {LATENCY_METRIC: (0.0, _LATENCY_CAP_MS), "items_shown": (0.0, _ITEMS_CAP)}


def parse_metrics(experiment_key: str, table: Mapping[str, Any], default: Sequence[str]) -> tuple[MetricSpec, ...]:
    """Return the metrics of an experiment's table in stored order; raises the errors of all wrong keys.

    The answer metrics that only guardrails name are included; wrong guardrails are left out, without an error.
    """
    problems = ConfigProblems()
    names = table.get("metrics", list(default))
    declared: tuple[MetricSpec, ...] = problems.attempt(_parse_names, f"{experiment_key}.metrics", names, ())
    declared_names = [metric.name for metric in declared]
    guardrail_metrics = [metric for metric in _guardrail_metrics(table) if metric.name not in declared_names]
    metrics = [
        *(metric for metric in declared if metric.is_ranking),
        *(metric for metric in declared if not metric.is_ranking),
        *sorted(guardrail_metrics, key=lambda metric: metric.name),
    ]
    answer_names = [metric.name for metric in metrics if not metric.is_ranking]
    ranges: Mapping[str, tuple[float, float]] = problems.attempt(
        partial(_parse_ranges, names=answer_names), f"{experiment_key}.ranges", table.get("ranges", {}), {}
    )
    lower_is_better: tuple[str, ...] = problems.attempt(
        partial(_parse_name_list, names=answer_names),
        f"{experiment_key}.lower_is_better",
        table.get("lower_is_better", []),
        (),
    )
    silence = table.get("silence", {})
    with problems.collect():
        _check_names(f"{experiment_key}.silence", silence, [name for name in answer_names if name.startswith("score:")])
    resolved = []
    for metric in metrics:
        if metric.is_ranking:
            resolved.append(metric)
            continue
        least, most = ranges.get(metric.name) or _DEFAULT_RANGES.get(metric.name, (0.0, 1.0))
        if metric.measure in {"score", "sum"} and metric.name not in ranges:
            if not problems.is_wrong(f"{experiment_key}.ranges"):
                expected = f"a range of {metric.name}, such as {{ {metric.name!r} = [0, 5] }}".replace("'", '"')
                problems.errors.append(ConfigError(f"{experiment_key}.ranges", table.get("ranges"), expected))
            continue
        silent_value = silence.get(metric.name) if isinstance(silence, dict) else None
        if silent_value is not None:
            silence_key = f"{experiment_key}.silence.{metric.name}"
            silent_value = problems.attempt(
                partial(parse_number, minimum=least, maximum=most), silence_key, silent_value, least
            )
        resolved.append(
            replace(
                metric,
                least=least,
                most=most,
                silence=silent_value,
                lower_is_better=metric.lower_is_better
                or metric.name in lower_is_better
                or metric.name in _names_harmful_upwards(table),
            )
        )
    problems.raise_errors()
    return tuple(resolved)


def parse_student_metrics(
    experiment_key: str, table: Mapping[str, Any], metrics: Sequence[MetricSpec], exposure_days: int
) -> tuple[str, ...]:
    """Return the student metrics of an experiment's table and of its guardrails, sorted.

    Raises the error of a metric in a name that is not one of `metrics`; of no metric if `metrics` are wrong.
    """
    declared = table.get("metrics")
    names = {name for name in (declared if isinstance(declared, list) else []) if is_student_metric(name)}
    for name in sorted(names):
        check_student_metric(f"{experiment_key}.metrics", name, metrics, exposure_days)
    names |= {name for guardrail in _guardrail_tables(table) if is_student_metric(name := guardrail.get("metric"))}
    known_names = {metric.name for metric in metrics}
    return tuple(sorted(name for name in names if name in STUDENT_METRICS or name.partition(":")[2] in known_names))


def is_student_metric(name: object) -> bool:
    """Return whether a name is that of a student metric, or begins like one."""
    return isinstance(name, str) and (
        name in STUDENT_METRICS or name.startswith((PER_STUDENT_PREFIX, SESSIONS_WITH_PREFIX))
    )


def check_student_metric(key: str, name: str, metrics: Sequence[MetricSpec], exposure_days: int) -> None:
    """Raise `ConfigError` if students have no value of a student metric, or if `metrics` lack the one in its name."""
    if name == RETURN_DAYS_METRIC and exposure_days == 1:
        raise ConfigError(key, name, "exposure_days of at least 2, so that students can return")
    prefix, separator, metric = name.partition(":")
    if separator and metrics and metric not in {each.name for each in metrics}:
        names = ", ".join(each.name for each in metrics)
        raise ConfigError(key, name, f"{prefix}:METRIC, with one of the metrics {names}")


def parse_ranking_metrics(key: str, value: object) -> tuple[MetricSpec, ...]:
    """Return the ranking metrics of a list of names; raises the errors of all invalid names."""
    if not isinstance(value, list) or not value:
        raise ConfigError(key, value, "a list of metrics")
    problems = ConfigProblems()
    metrics = []
    for name in value:
        with problems.collect():
            metric = _parse_ranking_name(name)
            if metric is None:
                raise ConfigError(key, name, f"one of {', '.join(RANKING_FORMATS)}, with k from 1 to {_MAX_K}")
            metrics.append(metric)
    problems.raise_errors()
    if len(set(metrics)) < len(metrics):
        raise ConfigError(key, value, "every metric once")
    return tuple(metrics)


def current_metric_name(name: object) -> str:
    """Return the name of a metric as text, `share:KIND` for its older name `feedback:KIND`.

    >>> current_metric_name("feedback:escalated"), current_metric_name("dcg@5")
    ('share:escalated', 'dcg@5')
    """
    text = str(name)
    return SHARE_PREFIX + text.removeprefix(_OLD_SHARE_PREFIX) if text.startswith(_OLD_SHARE_PREFIX) else text


def parse_answer_metric(key: str, name: str) -> MetricSpec | None:
    """Return the answer metric with a name, without its range; None if the name does not begin like one.

    `feedback:KIND`, the name in guardrails of earlier versions, is `share:KIND`.
    """
    if name in _EVENT_METRICS:
        return _EVENT_METRICS[name]
    prefix, separator, parameter = name.partition(":")
    if not separator or prefix not in {*_PARAMETER_PREFIXES, "feedback"}:
        return None
    if prefix == "latency_above_ms":
        if _THRESHOLD_MS.fullmatch(parameter) is None or int(parameter) > MAX_LATENCY_MS:
            expected = f"{LATENCY_ABOVE_PREFIX}T, with T in whole milliseconds from 1 to {MAX_LATENCY_MS:.0f}"
            raise ConfigError(key, name, expected)
        return MetricSpec(name, "latency_above_ms", threshold=float(parameter), lower_is_better=True)
    return _parse_feedback_metric(key, name, prefix, parameter)


def _parse_feedback_metric(key: str, name: str, prefix: str, parameter: str) -> MetricSpec:
    """Return the metric PREFIX:PARAMETER; the parameter is a kind, for a share perhaps with a smallest score."""
    kind, separator, threshold = parameter, "", ""
    if prefix == "share" and ">=" in parameter:
        kind, separator, threshold = parameter.rpartition(">=")
    if separator and _THRESHOLD.fullmatch(threshold) is None:
        raise ConfigError(key, name, "share:KIND>=T, with a number T from 0 to 99999")
    if prefix == "share" and not separator and ">" in kind:
        raise ConfigError(key, name, f"share:KIND>=T; did you mean {name.replace('>', '>=', 1)}?")
    if not _is_kind(kind):
        expected = f"{prefix}:KIND, with a kind of 1 to {MAX_KIND_LENGTH} printable characters, the first not +"
        raise ConfigError(key, name, expected)
    if prefix == "score":
        return MetricSpec(name, "score", kind=kind)
    if prefix == "sum":
        return MetricSpec(name, "sum", kind=kind)
    return MetricSpec(SHARE_PREFIX + parameter, "share", kind=kind, threshold=float(threshold) if separator else 0.0)


def _is_kind(value: object) -> bool:
    """Return whether a value can be the kind of a feedback event."""
    is_text = isinstance(value, str) and 0 < len(value) <= MAX_KIND_LENGTH
    return is_text and str(value).isprintable() and str(value)[0] != "+"


def parse_kind_groups(key: str, value: object) -> tuple[tuple[str, ...], ...]:
    """Return the groups of kinds that replace each other."""
    if (
        not isinstance(value, list)
        or len(value) > _MAX_GROUPS
        or not all(isinstance(group, list) and len(group) > 1 for group in value)
    ):
        raise ConfigError(key, value, 'a list of groups of kinds, such as [["thumb_up", "thumb_down"]]')
    groups = tuple(parse_kinds(key, group) for group in value)
    kinds = [kind for group in groups for kind in group]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(key, value, "every kind once")
    return groups


def parse_kinds(key: str, value: object) -> tuple[str, ...]:
    """Return the kinds of feedback of a list."""
    if not isinstance(value, list) or not all(map(_is_kind, value)):
        raise ConfigError(
            key, value, f"a list of kinds of 1 to {MAX_KIND_LENGTH} printable characters, the first not +"
        )
    if len(set(value)) < len(value):
        raise ConfigError(key, value, "every kind once")
    return tuple(value)


def _parse_names(key: str, value: object) -> tuple[MetricSpec, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_METRICS:
        raise ConfigError(key, value, f"a list of 1 to {_MAX_METRICS} metrics")
    problems = ConfigProblems()
    metrics = []
    for name in value:
        if not is_student_metric(name):
            with problems.collect():
                metrics.append(_parse_name(key, name))
    problems.raise_errors()
    if not metrics:
        raise ConfigError(key, value, "a metric of responses besides those of students, as the primary metric")
    if len(set(metrics)) < len(metrics):
        raise ConfigError(key, value, "every metric once")
    return tuple(metrics)


def _parse_ranking_name(name: object) -> MetricSpec | None:
    """Return the ranking metric with a name; None for another name."""
    match = _RANKING_NAME.fullmatch(name) if isinstance(name, str) else None
    if match is not None:
        for measure in get_args(RankingMeasure):
            if measure == match[1] and int(match[2]) <= _MAX_K:
                return MetricSpec(match[0], measure, int(match[2]))
    return None


def _parse_name(key: str, name: object) -> MetricSpec:
    metric = _parse_ranking_name(name)
    if metric is None and isinstance(name, str) and not name.startswith(_OLD_SHARE_PREFIX):
        metric = parse_answer_metric(key, name)
    if metric is None:
        formats = ", ".join((*RANKING_FORMATS, *ANSWER_FORMATS, *STUDENT_FORMATS))
        raise ConfigError(key, name, f"one of {formats}, with k from 1 to {_MAX_K}{_spelling_hint(name)}")
    return metric


def _spelling_hint(name: object) -> str:
    """Return the most similar metric in words; empty without one."""
    if not isinstance(name, str):
        return ""
    if name.startswith(_OLD_SHARE_PREFIX):
        return f"; did you mean {current_metric_name(name)}?"
    word, separator, parameter = name.partition("@" if "@" in name else ":")
    prefixes = (*_PARAMETER_PREFIXES, PER_STUDENT_PREFIX.rstrip(":"), SESSIONS_WITH_PREFIX.rstrip(":"))
    words = {"@": get_args(RankingMeasure), ":": prefixes, "": (*_EVENT_METRICS, *STUDENT_METRICS)}[separator]
    similar_word = similar_name(word, words)
    return f"; did you mean {similar_word}{separator}{parameter}?" if similar_word and similar_word != word else ""


def _guardrail_metrics(table: Mapping[str, Any]) -> Iterator[MetricSpec]:
    """Yield the answer metrics that valid guardrails name, each once."""
    for name in dict.fromkeys(str(guardrail.get("metric")) for guardrail in _guardrail_tables(table)):
        try:
            metric = parse_answer_metric("", name)
        except ConfigError:
            continue
        if metric is not None:
            yield replace(metric, is_guardrail_only=True)


def _names_harmful_upwards(table: Mapping[str, Any]) -> set[str]:
    """Return the metrics whose guardrail says that a rise is harmful."""
    return {
        current_metric_name(guardrail.get("metric"))
        for guardrail in _guardrail_tables(table)
        if guardrail.get("harmful_direction", "up") == "up"
    }


def _guardrail_tables(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the guardrails of an experiment's table that are tables."""
    guardrails = table.get("guardrails")
    return (
        [guardrail for guardrail in guardrails if isinstance(guardrail, dict)] if isinstance(guardrails, list) else []
    )


def _parse_ranges(key: str, value: object, names: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Return metric → (least, most) of a table."""
    _check_names(key, value, [name for name in names if name.startswith(("score:", "sum:")) or name in _DEFAULT_RANGES])
    assert isinstance(value, dict)
    ranges = {}
    for name, bounds in value.items():
        maximum = _MAX_LATENCY_CAP_MS if name == LATENCY_METRIC else _MAX_VALUE
        is_pair = isinstance(bounds, list) and len(bounds) == 2  # noqa: PLR2004  a pair
        if not is_pair or not all(
            isinstance(bound, (int, float)) and not isinstance(bound, bool) and -math.inf < bound < math.inf
            for bound in bounds
        ):
            raise ConfigError(f"{key}.{name}", bounds, "[least, most], such as [1, 5]")
        least, most = bounds
        if not 0 <= least < most <= maximum:
            raise ConfigError(f"{key}.{name}", bounds, f"0 <= least < most <= {maximum:.0f}")
        if least and not name.startswith("score:"):
            raise ConfigError(f"{key}.{name}", bounds, "0 as the least value")
        ranges[name] = float(least), float(most)
    return ranges


def _parse_name_list(key: str, value: object, names: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(key, value, "a list of answer metrics")
    for name in value:
        _check_name(key, name, names)
    if len(set(value)) < len(value):
        raise ConfigError(key, value, "every metric once")
    return tuple(value)


def _check_names(key: str, value: object, names: Sequence[str]) -> None:
    """Raise `ConfigError` unless a value is a table whose keys are some of the names."""
    if not isinstance(value, dict):
        raise ConfigError(key, value, "a table with metrics as keys")
    for name in value:
        _check_name(key, name, names)


def _check_name(key: str, name: object, names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(key, name, "only metrics of the experiment that have such a setting; it has none")
    parse_choice(key, name, names)
