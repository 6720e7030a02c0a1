"""The declaration of an experiment that was seen in events, but that the configuration does not contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from monitor.analysis import UndeclaredExperiment, format_timestamp
from monitor.config import ExperimentSettings, MetricSpec, parse_settings
from monitor.decoding.starting_config import comment_text, guess_control, shares_table
from monitor.decoding.suggestions import toml_key, toml_string
from monitor.errors import UsageError, setting_text

_DURATION_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MIN_VARIANTS: Final = 2
_COPIED_KEYS: Final[Mapping[str, Callable[[ExperimentSettings], object]]] = {
    "unit": lambda experiment: experiment.unit,
    "day": lambda experiment: experiment.day_zone,
    "metrics": lambda experiment: [
        *(metric.name for metric in _copied_metrics(experiment)),
        *(name for name in experiment.student_metrics if name not in _guardrail_metrics(experiment)),
    ],
    "ranges": lambda experiment: {
        metric.name: [metric.least, metric.most]
        for metric in _copied_metrics(experiment)
        if metric.measure in {"score", "sum", "latency_ms", "items_shown"}
    },
    "silence": lambda experiment: {
        metric.name: metric.silence for metric in _copied_metrics(experiment) if metric.silence is not None
    },
    "lower_is_better": lambda experiment: [
        metric.name for metric in _copied_metrics(experiment) if metric.kind and metric.lower_is_better
    ],
    "exclusive_kinds": lambda experiment: experiment.exclusive_kinds,
    "additive_kinds": lambda experiment: experiment.additive_kinds,
    "exclude": lambda experiment: experiment.exclude,
    "primary": lambda experiment: experiment.primary,
    "gain": lambda experiment: experiment.gain,
    "discount": lambda experiment: experiment.discount,
    "ideal": lambda experiment: experiment.ideal,
    "max_grade": lambda experiment: experiment.max_grade,
    "relevant_grade": lambda experiment: experiment.relevant_grade,
    "grades": lambda experiment: experiment.grades,
    "feedback_window": lambda experiment: _duration_text(experiment.feedback_window_ms),
    "allowed_lateness": lambda experiment: _duration_text(experiment.allowed_lateness_ms),
    "retention": lambda experiment: _duration_text(experiment.retention_ms),
    "exposure_days": lambda experiment: experiment.exposure_days,
    "population": lambda experiment: experiment.decision.population,
}
"""Key → its value in an experiment. Keys about certain variants, times, items or effects are not copied."""


def suggest_declaration(experiment: UndeclaredExperiment, template: ExperimentSettings | None = None) -> str:
    """Return the table `[[experiments]]` of an experiment as TOML, which `parse_settings` accepts, with comments.

    `template` is an experiment whose metrics, grades and windows are copied; None: the defaults of the configuration.
    There is no `starts_at`, so all responses count. Raises `UsageError` for a name that a configuration cannot contain.
    """
    if not experiment.is_declarable:
        raise UsageError(
            f"experiment {setting_text(experiment.name)}: expected a name of at most 100 printable characters without "
            "blanks around it. Correct the name in the events"
        )
    return "\n".join([*_lines(experiment), *_copied_lines(template)]) + "\n"


def _lines(experiment: UndeclaredExperiment) -> Iterator[str]:
    counts = Counter(experiment.declarable_variants)
    first, last = format_timestamp(experiment.first_ms), format_timestamp(experiment.last_ms)
    yield comment_text(
        f"# seen: {experiment.responses:,} responses from {first} to {last}: "
        f"{_observed_shares(experiment, experiment.variants) or 'no variant'}"
    )
    omitted = {name: responses for name, responses in experiment.variants.items() if name not in counts}
    if omitted or experiment.other_variant_responses:
        texts = [_observed_shares(experiment, omitted)] * bool(omitted)
        texts += ["further ones"] * bool(experiment.other_variant_responses)
        yield comment_text(f"# left out, with less than 1 % or with names that are not valid: {', '.join(texts)}")
    if len(counts) < _MIN_VARIANTS:
        yield "# TODO: less than two variants were seen; name the others"
    yield "[[experiments]]"
    yield f"name = {toml_string(experiment.name)}"
    control = guess_control(counts or ["control"])
    yield f"control = {toml_string(control)}  # confirm: the others are compared with this variant"
    yield "# Shares of the responses. Replace them by the intended shares of students: the SRM test compares with these"
    yield f"variants = {shares_table(counts or Counter([control]))}"


def _observed_shares(experiment: UndeclaredExperiment, variants: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {experiment.share(responses):.1%}" for name, responses in variants.items())


def _copied_lines(template: ExperimentSettings | None) -> Iterator[str]:
    """Yield the keys of the template that differ from the defaults."""
    if template is None:
        return
    table = {"name": "defaults", "control": "a", "variants": {"a": 0.5, "b": 0.5}}
    (defaults,) = parse_settings({"experiments": [table]}, {}).experiments
    lines = [
        f"{key} = {_toml_value(value_of(template))}"
        for key, value_of in _COPIED_KEYS.items()
        if value_of(template) != value_of(defaults)
    ]
    if lines:
        yield comment_text(f"# As in experiment {setting_text(template.name)}:")
        yield from lines


def _copied_metrics(experiment: ExperimentSettings) -> list[MetricSpec]:
    """Return the metrics without those that only guardrails name, since guardrails are not copied."""
    return [metric for metric in experiment.metrics if not metric.is_guardrail_only]


def _guardrail_metrics(experiment: ExperimentSettings) -> set[str]:
    return {guardrail.metric for guardrail in experiment.decision.guardrails}


def _toml_value(value: object) -> str:
    """Return a text, a number, a list or a table as TOML.

    >>> _toml_value({"click": 1.0, "0.5": [(1.0, 2.5)]})
    '{ click = 1, "0.5" = [[1, 2.5]] }'
    """
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(_key_text(key))} = {_toml_value(member)}" for key, member in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml_value, value))}]"
    return _key_text(value)


def _key_text(value: object) -> str:
    """Return a text, or a number without unnecessary decimals."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _duration_text(duration_ms: int) -> str:
    """Return a duration in the largest unit without a fraction.

    >>> _duration_text(86_400_000), _duration_text(90_000)
    ('1d', '90s')
    """
    unit = next(unit for unit, length_ms in _DURATION_UNITS_MS.items() if duration_ms % length_ms == 0)
    return f"{duration_ms // _DURATION_UNITS_MS[unit]}{unit}"
