"""Parses an `[[experiments]]` table → `ExperimentSettings`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard, TypeVar, cast, get_args

from monitor.clock import DAY_MS
from monitor.config.criteria import DECISION_KEYS, decision_warnings, parse_decision
from monitor.config.display_texts import (
    MAX_HYPOTHESIS_LENGTH,
    MAX_OWNER_LENGTH,
    NO_TEXTS,
    parse_link,
    parse_optional_line,
    parse_texts,
)
from monitor.config.exclusion import parse_exclude, parse_unit
from monitor.config.metric_tables import (
    ANSWER_FORMATS,
    MAX_KIND_LENGTH,
    METRIC_KEYS,
    RANKING_FORMATS,
    parse_kind_groups,
    parse_kinds,
    parse_metrics,
    parse_student_metrics,
)
from monitor.config.settings import (
    LATENCY_METRIC,
    NO_CATEGORY,
    OTHER_CATEGORY,
    RATED_SHARE_METRIC,
    DecaySpec,
    DriftSettings,
    ExperimentSettings,
    GradeRule,
    ItemSettings,
    MetricSpec,
    NamedDiscount,
    NamedGain,
    NdcgIdeal,
    is_proportion,
)
from monitor.config.values import (
    ConfigProblems,
    check_keys,
    parse_boolean,
    parse_choice,
    parse_duration_ms,
    parse_instant_ms,
    parse_integer,
    parse_number,
    parse_shares,
    parse_text,
    parse_zone,
    read_lines,
    rename_misspelt_keys,
    similar_name,
)
from monitor.days import UTC_ZONE
from monitor.errors import ConfigError

Setting = TypeVar("Setting")

_KEYS: Final = {
    "name", "control", "variants", "starts_at", "ends_at", "primary", "gain", "discount", "ideal",
    "max_grade", "relevant_grade", "grades", "feedback_window", "feedback_clock_tolerance", "allowed_lateness",
    "retention", "decay", "categories", "drift", "items", "exposure_days", "novelty", "pre_period",
    "unit", "exclude", "closing_delay", "day", "owner", "hypothesis", "link", "texts", *METRIC_KEYS, *DECISION_KEYS,
}  # fmt: skip
_DEFAULT_METRICS: Final = ("dcg@5", "ndcg@5", "success@5")
_RECIPROCAL_DECAY: Final = re.compile(r"reciprocal-([1-9][0-9]{0,2})d")
_GAIN_EXAMPLE: Final = "{ 0 = 0, 1 = 1, 2 = 3 }"
MAX_NAME_LENGTH: Final = 100
MAX_GAIN: Final = 65_536.0
_MAX_EXPONENT: Final = 16.0
_MAX_DECAYS: Final = 6
MAX_VARIANTS: Final = 255
_MAX_CATEGORIES: Final = 100
_MAX_LISTED_CATEGORIES: Final = 10
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


def parse_experiment(table: Mapping[str, Any], experiment_key: str) -> ExperimentSettings:
    """Return the experiment of a table; raises the errors of all wrong values, whose keys begin with `experiment_key`.

    An error that may only be a consequence of another one is left out.
    """
    problems = ConfigProblems()
    with problems.collect():
        check_keys(experiment_key, table, _KEYS)
    table = rename_misspelt_keys(table, _KEYS)

    def read(parse: Callable[[str, object], Setting], key: str, default: object, fallback: Setting) -> Setting:
        return problems.attempt(parse, f"{experiment_key}.{key}", table.get(key, default), fallback)

    def is_wrong(key: str) -> bool:
        return problems.is_wrong(f"{experiment_key}.{key}")

    variants = read(_parse_variants, "variants", None, _variants_without_shares(table.get("variants")))
    metrics: tuple[MetricSpec, ...] = ()
    with problems.collect():
        metrics = parse_metrics(experiment_key, table, _DEFAULT_METRICS)
    exposure_days = read(partial(parse_integer, minimum=1, maximum=90), "exposure_days", 3, 3)
    student_metrics: tuple[str, ...] = ()
    with problems.collect():
        student_metrics = parse_student_metrics(experiment_key, table, metrics, exposure_days)
    names = [metric.name for metric in metrics if not metric.is_guardrail_only]
    has_ranking = not metrics or metrics[0].is_ranking
    gain: NamedGain | Mapping[float, float] = read(_parse_gain, "gain", "linear", "linear")
    grade_limit = _MAX_EXPONENT if gain == "exp2" else MAX_GAIN
    max_grade = read(partial(parse_number, minimum=0.001, maximum=grade_limit), "max_grade", 4, grade_limit)
    categories: tuple[str, ...] = read(_parse_categories, "categories", [], ())
    experiment = ExperimentSettings(
        name=read(_parse_name, "name", None, ""),
        control=read(partial(parse_choice, choices=variants), "control", None, "") if variants else "",
        variants=variants,
        unit=read(parse_unit, "unit", "user", "user"),
        exclude=read(parse_exclude, "exclude", {}, {}),
        starts_at_ms=read(_parse_optional_instant_ms, "starts_at", None, None),
        ends_at_ms=read(_parse_optional_instant_ms, "ends_at", None, None),
        metrics=metrics,
        primary=read(partial(_parse_primary, names=names), "primary", _default_primary(table, names), ""),
        gain=gain,
        discount=read(partial(parse_choice, choices=get_args(NamedDiscount)), "discount", "log2", "log2"),
        ideal=read(partial(parse_choice, choices=get_args(NdcgIdeal)), "ideal", "shown", "shown"),
        max_grade=max_grade,
        relevant_grade=read(
            partial(parse_number, minimum=0.0, maximum=max_grade), "relevant_grade", min(3, max_grade), 0.0
        ),
        grades=read(
            partial(_parse_grades, max_grade=max_grade, may_be_empty=not has_ranking),
            "grades",
            {"rating": "score"} if has_ranking else {},
            {},
        ),
        student_metrics=student_metrics,
        exclusive_kinds=read(parse_kind_groups, "exclusive_kinds", [], ()),
        additive_kinds=read(parse_kinds, "additive_kinds", [], ()),
        feedback_window_ms=read(parse_duration_ms, "feedback_window", "24h", DAY_MS),
        closing_delay_ms=read(_parse_closing_delay_ms, "closing_delay", None, 0),
        feedback_clock_tolerance_ms=read(parse_duration_ms, "feedback_clock_tolerance", "5s", 5000),
        allowed_lateness_ms=read(parse_duration_ms, "allowed_lateness", "7d", DAY_MS),
        retention_ms=read(parse_duration_ms, "retention", "30d", DAY_MS),
        decay=read(_parse_decays, "decay", ["1h", "24h"], ()),
        categories=categories,
        items=read(_parse_items, "items", None, None),
        drift=read(
            partial(_parse_drift, categories=None if is_wrong("categories") else categories),
            "drift",
            {},
            DriftSettings(),
        ),
        day_zone=read(parse_zone, "day", UTC_ZONE, UTC_ZONE),
        exposure_days=exposure_days,
        novelty=read(parse_boolean, "novelty", default=False, fallback=False),
        pre_period_ms=read(_parse_pre_period_ms, "pre_period", None, None),
        owner=read(partial(parse_optional_line, max_length=MAX_OWNER_LENGTH), "owner", None, ""),
        hypothesis=read(partial(parse_optional_line, max_length=MAX_HYPOTHESIS_LENGTH), "hypothesis", None, ""),
        link=read(parse_link, "link", None, ""),
    )
    with problems.collect():
        experiment = replace(experiment, decision=parse_decision(table, experiment_key, experiment))
    has_wrong_metrics = any(map(is_wrong, (*METRIC_KEYS, "guardrails")))
    metric_names = _all_metric_names(experiment)
    parse_experiment_texts = partial(
        parse_texts,
        metrics=None if has_wrong_metrics else metric_names,
        variants=variants or None,
        kinds=None if has_wrong_metrics or is_wrong("grades") else sorted(experiment.feedback_kinds),
        scaled_metrics=[name for name in metric_names if is_proportion(name) or name == LATENCY_METRIC],
    )
    experiment = replace(experiment, texts=read(parse_experiment_texts, "texts", {}, NO_TEXTS))
    problems.errors += [
        ConfigError(f"{experiment_key}.{keys[0]}", value, expected)
        for keys, value, expected in _find_contradictions(table, experiment)
        if not any(map(is_wrong, keys))
    ]
    problems.raise_errors()
    return experiment


def _all_metric_names(experiment: ExperimentSettings) -> tuple[str, ...]:
    """Return the names of the metrics, student metrics and guardrail metrics of an experiment, each once."""
    names = (
        *(metric.name for metric in experiment.metrics),
        *experiment.student_metrics,
        *(guardrail.metric for guardrail in experiment.decision.guardrails),
        RATED_SHARE_METRIC,
    )
    return tuple(dict.fromkeys(names))


def _find_contradictions(
    table: Mapping[str, Any], experiment: ExperimentSettings
) -> Iterator[tuple[tuple[str, ...], object, str]]:
    """Yield (keys, value of the first key, expected values) of settings that are valid alone, but not together."""
    starts_at_ms, ends_at_ms = experiment.starts_at_ms, experiment.ends_at_ms
    if starts_at_ms is not None and ends_at_ms is not None and ends_at_ms <= starts_at_ms:
        yield ("ends_at", "starts_at"), table["ends_at"], "a time after starts_at"
    if experiment.pre_period_ms is not None and (starts_at_ms is None or experiment.pre_period_ms > starts_at_ms):
        expected = "a value of starts_at as well, because the pre-period ends at starts_at"
        yield ("pre_period", "starts_at"), table["pre_period"], expected
    if experiment.variants.get(experiment.control) == 0:
        yield ("variants", "control"), experiment.variants, "a share above 0 for the control"
    if experiment.retention_ms < experiment.horizon_ms:
        expected = (
            f"at least feedback_window + allowed_lateness, {experiment.horizon_ms / DAY_MS:g} days here, because "
            "responses of that age can still change"
        )
        yield ("retention", "feedback_window", "allowed_lateness"), table.get("retention", "30d"), expected
    if experiment.closing_delay_ms > experiment.allowed_lateness_ms:
        expected = "at most allowed_lateness, because later feedback is not counted"
        yield ("closing_delay", "allowed_lateness"), table.get("closing_delay"), expected
    gain, max_grade = experiment.gain, experiment.max_grade
    if not isinstance(gain, str):
        for grade in sorted({max_grade, *_rule_grades(experiment.grades)} - set(gain)):
            yield ("gain", "max_grade" if grade == max_grade else "grades"), gain, f"a gain for the grade {grade:g}"
        if max(gain) > max_grade:
            yield ("gain", "max_grade"), gain, f"no grade above max_grade = {max_grade:g}"
    yield from _find_feedback_contradictions(experiment)
    max_gain = _max_gain(gain, max_grade)
    max_k = max((metric.k for metric in experiment.metrics if metric.measure in ("cg", "dcg")), default=1)
    if max_gain * max_k > MAX_GAIN:
        expected = (
            f"a grade whose gain times the largest k of a metric is at most {MAX_GAIN:.0f}, not {max_gain * max_k:g}"
        )
        yield ("max_grade", "gain", "metrics"), max_grade, expected


def _find_feedback_contradictions(experiment: ExperimentSettings) -> Iterator[tuple[tuple[str, ...], object, str]]:
    """Yield the contradictions, as `_find_contradictions`, of settings of answer metrics and of kinds of feedback."""
    primary = next((metric for metric in experiment.metrics if metric.name == experiment.primary), None)
    is_silent = primary is not None and primary.may_be_silent
    if is_silent and primary is not None and primary.lower_is_better:
        # The check of the other population counts silence as the least score, which must be the worst one.
        expected = f"a value for {experiment.primary}, because the lowest score is the best one: the value of silence"
        yield ("silence", "lower_is_better"), None, expected
    elif experiment.decision.population == "all" and is_silent:
        expected = f"rated, or a value of silence for {experiment.primary}: the value of responses without a score"
        yield ("population", "silence"), "all", expected
    shared = sorted({*experiment.additive_kinds} & {kind for group in experiment.exclusive_kinds for kind in group})
    if shared:
        expected = f"no kind of exclusive_kinds, such as {shared[0]}: a kind replaces reactions or adds up"
        yield ("additive_kinds", "exclusive_kinds"), list(experiment.additive_kinds), expected


def _rule_grades(grades: Mapping[str, GradeRule]) -> set[float]:
    """Return the grades that rules contain; a rule "score" contains none."""
    return {
        grade
        for rule in grades.values()
        if not isinstance(rule, str)
        for grade in ([grade for _, grade in rule] if isinstance(rule, tuple) else [rule])
    }


def _max_gain(gain: NamedGain | Mapping[float, float], max_grade: float) -> float:
    """Return the gain of the largest grade; 0 if a table of gains lacks the grade."""
    if isinstance(gain, str):
        return max_grade if gain == "linear" else 2.0**max_grade - 1
    return gain.get(max_grade, 0.0)


def experiment_warnings(experiments: Sequence[ExperimentSettings]) -> list[str]:
    """Return a sentence for each setting that is valid but probably has another effect than intended."""
    warnings = [warning for experiment in experiments for warning in decision_warnings(experiment)]
    for experiment in experiments:
        for decay in experiment.decay:
            weight, sufficient_retention = _weight_beyond_retention(decay, experiment.retention_ms)
            if weight > _MAX_WEIGHT_BEYOND_RETENTION:
                warnings.append(
                    f"experiments.{experiment.name}.decay: {decay.name} would give {weight:.1%} of its weight to "
                    f"responses older than retention, which are left out: set retention to {sufficient_retention} or "
                    "more"
                )
    return warnings


def _weight_beyond_retention(decay: DecaySpec, retention_ms: int) -> tuple[float, str]:
    """Return the share of steady traffic's weight that is older than `retention`, and a sufficient retention."""
    if decay.half_life_ms is not None:
        return 2.0 ** (-retention_ms / decay.half_life_ms), f"{math.ceil(9 * decay.half_life_ms / DAY_MS)}d"
    cutoff_days = (decay.cutoff_ms or 0) / DAY_MS
    retained_weight = math.log1p(min(retention_ms / DAY_MS, cutoff_days)) / math.log1p(cutoff_days)
    return 1 - retained_weight, f"{cutoff_days:g}d"


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value may be the name of an experiment, a variant or a category."""
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable() and value == value.strip()
    )


def _parse_name(key: str, value: object) -> str:
    if not is_name(value):
        raise ConfigError(key, value, f"a name of 1 to {MAX_NAME_LENGTH} printable characters without blanks around it")
    return value


def _parse_variants(key: str, value: object) -> Mapping[str, float]:
    if not isinstance(value, dict) or not 2 <= len(value) <= MAX_VARIANTS:  # noqa: PLR2004  a comparison needs two
        raise ConfigError(
            key,
            f"{len(value)} variants" if isinstance(value, dict) and len(value) > MAX_VARIANTS else value,
            f"a table of at least two variants (at most {MAX_VARIANTS}) with their shares, such as "
            "{ control = 0.5, treatment = 0.5 }",
        )
    problems = ConfigProblems()
    for name in value:
        with problems.collect():
            _parse_name(key, name)
    shares: Mapping[str, float] = {}
    with problems.collect():
        shares = parse_shares(key, value)
    problems.raise_errors()
    return MappingProxyType(shares)


def _variants_without_shares(value: object) -> Mapping[str, float]:
    """Return the names in a table of variants whose shares may be wrong; empty if the names are wrong."""
    if not isinstance(value, dict) or len(value) < 2 or not all(map(is_name, value)):  # noqa: PLR2004
        return {}
    return dict.fromkeys(value, 0.0)


def _default_primary(table: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return dcg@5 if it is a metric, else the first metric of the table."""
    if "dcg@5" in names or not names:
        return "dcg@5"
    return next(str(name) for name in table["metrics"] if name in names)


def _parse_primary(key: str, value: object, names: Sequence[str]) -> str:
    """Return the name of the primary metric; without `names`, because the metrics are wrong, of any metric."""
    if not names and isinstance(value, str) and ("@" in value or ":" in value):
        return value
    return parse_choice(key, value, names or (*RANKING_FORMATS, *ANSWER_FORMATS))


def _parse_gain(key: str, value: object) -> NamedGain | Mapping[float, float]:
    if not isinstance(value, dict):
        for named_gain in get_args(NamedGain):
            if named_gain == value:
                return cast(NamedGain, named_gain)
        similar_gain = similar_name(value, get_args(NamedGain)) if isinstance(value, str) else None
        hint = f"; did you mean {similar_gain}?" if similar_gain else ""
        expected = (
            f"one of {', '.join(get_args(NamedGain))}, or a table of gains by grade, such as {_GAIN_EXAMPLE}{hint}"
        )
        raise ConfigError(key, value, expected)
    table: dict[float, float] = {}
    for name, gain in value.items():
        try:
            grade = parse_number(key, float(name), 0.0, MAX_GAIN)
        except (ValueError, ConfigError):
            raise ConfigError(key, name, f"grades as keys, such as {_GAIN_EXAMPLE}") from None
        if grade in table:
            raise ConfigError(key, name, "every grade once")
        table[grade] = parse_number(f"{key}.{name}", gain, 0.0, MAX_GAIN)
    gains = [table[grade] for grade in sorted(table)]
    if gains != sorted(gains) or not gains:
        raise ConfigError(key, value, "gains that do not fall as the grade rises")
    return MappingProxyType(table)


def _parse_grades(key: str, value: object, max_grade: float, *, may_be_empty: bool) -> Mapping[str, GradeRule]:
    if not isinstance(value, dict) or not (value or may_be_empty):
        raise ConfigError(key, value, "a table of kinds of feedback and their grades")
    problems = ConfigProblems()
    rules: dict[str, GradeRule] = {}
    for kind, rule in value.items():
        with problems.collect():
            rules[kind] = _parse_grade_rule(f"{key}.{kind}", kind, rule, max_grade)
    problems.raise_errors()
    return MappingProxyType(rules)


def _parse_grade_rule(key: str, kind: str, rule: object, max_grade: float) -> GradeRule:
    if not 0 < len(kind) <= MAX_KIND_LENGTH or kind[0] == "+":
        raise ConfigError(key, rule, f"a kind of 1 to {MAX_KIND_LENGTH} characters that does not begin with +")
    if rule == "score":
        return "score"
    if isinstance(rule, list):
        return _parse_grade_thresholds(key, rule, max_grade)
    if isinstance(rule, (int, float)) and not isinstance(rule, bool):
        return _parse_grade(key, rule, max_grade)
    raise ConfigError(key, rule, '"score", a grade, or a list of [threshold, grade] pairs')


def _parse_grade(key: str, value: object, max_grade: float) -> float:
    """Return a grade from 0 to `max_grade`."""
    if isinstance(value, (int, float)) and value < 0:
        raise ConfigError(
            key, value, f"a grade from 0 to {max_grade:g}: nDCG is undefined for negative grades, so give bad items 0"
        )
    return parse_number(key, value, 0.0, max_grade)


def _parse_grade_thresholds(key: str, rule: list[object], max_grade: float) -> tuple[tuple[float, float], ...]:
    thresholds = []
    for pair in rule:
        if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004  a pair
            raise ConfigError(key, rule, "a list of [threshold, grade] pairs")
        thresholds.append((parse_number(key, pair[0], 0.0, 1e12), _parse_grade(key, pair[1], max_grade)))
    if not thresholds or any(low[0] >= high[0] for low, high in pairwise(thresholds)):
        raise ConfigError(key, rule, "thresholds in ascending order")
    return tuple(thresholds)


def _parse_decays(key: str, value: object) -> tuple[DecaySpec, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DECAYS:
        raise ConfigError(key, value, f"a list of at most {_MAX_DECAYS} half-lives")
    problems = ConfigProblems()
    decays = []
    for name in value:
        with problems.collect():
            decays.append(_parse_decay(key, name))
    problems.raise_errors()
    if len({decay.name for decay in decays}) < len(decays):
        raise ConfigError(key, value, "every half-life once")
    return tuple(decays)


def _parse_decay(key: str, name: object) -> DecaySpec:
    match = _RECIPROCAL_DECAY.fullmatch(name) if isinstance(name, str) else None
    if match is not None:
        return DecaySpec(match[0], None, int(match[1]) * DAY_MS)
    try:
        half_life_ms = parse_duration_ms(key, name)
    except ConfigError:
        raise ConfigError(key, name, 'half-lives such as "1h" or "24h", or "reciprocal-10d"') from None
    if not _MIN_HALF_LIFE_MS <= half_life_ms <= 365 * DAY_MS:
        raise ConfigError(key, name, "half-lives from 1s to 365d")
    return DecaySpec(str(name), half_life_ms)


def _parse_categories(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_CATEGORIES:
        raise ConfigError(key, value, f"a list of at most {_MAX_CATEGORIES} names")
    problems = ConfigProblems()
    names = tuple(problems.attempt(_parse_name, key, name, "") for name in value)
    problems.raise_errors()
    if len(set(names)) < len(names) or OTHER_CATEGORY in names or NO_CATEGORY in names:
        raise ConfigError(
            key,
            value,
            f"every category once, and neither {OTHER_CATEGORY} nor {NO_CATEGORY}, which are reserved for responses of "
            "an undeclared category and without a category",
        )
    return names


def _parse_pre_period_ms(key: str, value: object) -> int | None:
    return None if value is None else parse_duration_ms(key, value)


def _parse_drift(key: str, value: object, categories: Sequence[str] | None) -> DriftSettings:
    """Return the settings of a table; `categories` is None if the declared categories are wrong."""
    if not isinstance(value, dict):
        raise ConfigError(key, value, f"a table with the keys {', '.join(_DRIFT_KEYS)}")
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, value, _DRIFT_KEYS)
    table = rename_misspelt_keys(value, _DRIFT_KEYS)
    default = DriftSettings()
    reference: int | Mapping[str, int] = problems.attempt(
        partial(_parse_drift_reference, counts_format="category → responses"),
        f"{key}.reference",
        table.get("reference", default.reference),
        default.reference,
    )
    if not isinstance(reference, int) and categories is not None:
        allowed_categories = (*categories, OTHER_CATEGORY, NO_CATEGORY)
        expected = f"one of the declared categories: {', '.join(allowed_categories)}"
        problems.errors += [
            ConfigError(f"{key}.reference: {table['reference']}", name, expected)
            for name in reference
            if name not in allowed_categories
        ][:_MAX_LISTED_CATEGORIES]
    items_reference: int | Mapping[str, int] = problems.attempt(
        partial(_parse_drift_reference, counts_format="item → times shown"),
        f"{key}.items_reference",
        table.get("items_reference", reference if isinstance(reference, int) else default.items_reference),
        default.items_reference,
    )
    min_alpha, max_alpha = _DRIFT_ALPHA_RANGE
    alpha = problems.attempt(
        partial(parse_number, minimum=min_alpha, maximum=max_alpha),
        f"{key}.alpha",
        table.get("alpha", default.alpha),
        default.alpha,
    )
    problems.raise_errors()
    return DriftSettings(reference=reference, items_reference=items_reference, alpha=alpha)


def _parse_drift_reference(key: str, value: object, counts_format: str) -> int | Mapping[str, int]:
    """Return a number of days, or the counts in a JSON file; `counts_format` describes the file's object."""
    if not isinstance(value, str):
        return parse_integer(key, value, 1, _MAX_REFERENCE_DAYS)
    path = value
    expected = f"a number of days, or a file with one JSON object: {counts_format}, 0 to {_MAX_OBSERVATIONS}"
    try:
        counts = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(key, path, f"a readable file ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, path, expected) from error
    if not isinstance(counts, dict) or not any(counts.values()):
        raise ConfigError(key, path, expected)
    for name in counts:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{key}: {path}", ascii(name), "a name in valid Unicode") from error
    return MappingProxyType(
        {name: parse_integer(f"{key}: {path}: {name}", count, 0, _MAX_OBSERVATIONS) for name, count in counts.items()}
    )


def _parse_items(key: str, value: object) -> ItemSettings | None:
    if value is None:
        return None
    table: dict[str, Any] = value if isinstance(value, dict) else {"horizon": value}
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, table, _ITEM_KEYS)
    table = rename_misspelt_keys(table, _ITEM_KEYS)

    def read(parse: Callable[[str, object], Setting], name: str, default: object, fallback: Setting) -> Setting:
        return problems.attempt(parse, f"{key}.{name}", table.get(name, default), fallback)

    horizon_days = read(_parse_horizon_days, "horizon", None, 1)
    catalogue = read(_parse_catalogue, "catalogue", None, None)
    sample_one_in = read(partial(parse_integer, minimum=1, maximum=_MAX_SAMPLE_ONE_IN), "sample_one_in", 1, 1)
    expected_items = read(partial(parse_integer, minimum=1, maximum=_MAX_ITEMS), "expected_items", 10_000, 1)
    problems.raise_errors()
    return ItemSettings(
        horizon_days,
        catalogue=catalogue,
        sample_one_in=sample_one_in,
        expected_items=len(catalogue) if catalogue else expected_items,
    )


def _parse_horizon_days(key: str, value: object) -> int:
    horizon_ms = parse_duration_ms(key, value)
    if horizon_ms % DAY_MS or horizon_ms > _MAX_HORIZON_DAYS * DAY_MS:
        raise ConfigError(key, value, f"a number of whole days up to {_MAX_HORIZON_DAYS}d")
    return horizon_ms // DAY_MS


def _parse_catalogue(key: str, value: object) -> frozenset[str] | None:
    if value is None:
        return None
    path = parse_text(key, value)
    ids = read_lines(key, path)
    if not 0 < len(ids) <= _MAX_ITEMS:
        raise ConfigError(key, path, f"a file with 1 to {_MAX_ITEMS} ids, one per line")
    return ids


def _parse_closing_delay_ms(key: str, value: object) -> int:
    return 0 if value is None else parse_duration_ms(key, value)


def _parse_optional_instant_ms(key: str, value: object) -> int | None:
    return None if value is None else parse_instant_ms(key, value)
