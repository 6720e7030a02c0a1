"""One experiment as a table for people: rows of quantities, columns of variants with the control first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from monitor.analysis import Coverage, DayDrift, Distance, ExperimentSummary, Summary, VariantSummary
from monitor.metrics import LATENCY_BOUNDS_MS
from monitor.stats import Comparison, GuardrailResult, State, Verdict

ABSENT: Final = "–"
MEANINGS: Final[Mapping[State, str]] = {
    "insufficient_data": "there is too little data to say anything",
    "invalid": "the data is no fair comparison, whatever it shows",
    "stop_harm": "it does more harm than is tolerable: stop it",
    "ship": "it is better, and nothing speaks against it: ship it",
    "non_inferior": "it is not worse than is tolerable",
    "futile": "an effect that matters can be ruled out",
    "continue": "nothing is decided yet: go on",
}
_TONES: Final[Mapping[State, Literal["good", "bad"]]] = {
    "ship": "good",
    "non_inferior": "good",
    "stop_harm": "bad",
    "invalid": "bad",
}
_LONGEST_LABEL: Final = 20
_NOTHING: Final = 5e-5
"""Means below it are shown as 0."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity over all variants; `details` stand beside the values, smaller."""

    label: str
    values: tuple[str, ...]
    details: tuple[str, ...]
    group: str
    primary: bool = False


def count(number: float) -> str:
    """Return a count with its thousands apart."""
    return f"{number:,.0f}".replace(",", "\u202f")


def unmatched_feedback(summary: Summary) -> str | None:
    """Return a line with the unmatched feedback of each kind, the most frequent first; None where there is none."""
    counts = sorted(summary.unmatched_feedback.items(), key=lambda kind: -kind[1])
    kinds = ", ".join(f"{kind} {count(number)}" for kind, number in counts if number)
    return f"Unmatched feedback: {kinds} (no response was stored when they expired)" if kinds else None


def share(part: float | None) -> str:
    """Return a share in per cent."""
    return ABSENT if part is None else f"{part:.1%}".replace("%", "\u202f%")


def age(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago something was."""
    if at_ms is None:
        return "never"
    seconds = max(now_ms - at_ms, 0) // 1000
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds // length}\u202f{unit} ago"
    return f"{seconds}\u202fs ago"


def short(value: float | None) -> str:
    """Return a number with four significant digits."""
    return ABSENT if value is None else f"{value:.4g}"


def _mean(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4f}"


def _against(value: float | None, control: float | None) -> str:
    """Return the difference from the control in per cent of it; nothing where the control would be shown as 0."""
    if value is None or control is None or abs(control) < _NOTHING:
        return ""
    return f"{(value - control) / control:+.1%}".replace("%", "\u202f%")


def rows(experiment: ExperimentSummary, now_ms: int, least_students: int = 1) -> list[Row]:
    """Return the rows of an experiment's table; means on fewer than `least_students` students are not shown."""
    variants = [variant for _, variant in experiment.ordered()]

    def row(
        label: str,
        group: str,
        value: Callable[[VariantSummary], str],
        detail: Callable[[VariantSummary], str] | None = None,
    ) -> Row:
        details = tuple(detail(variant) if detail else "" for variant in variants)
        return Row(label, tuple(value(variant) for variant in variants), details, group)

    table = [
        row("responses", "traffic", lambda each: count(each.responses)),
        row("students", "traffic", lambda each: count(each.students)),
        row(
            "rated share",
            "traffic",
            lambda each: share(each.rated_share),
            lambda each: f"n {count(each.rated_responses)}",
        ),
        row("last event", "traffic", lambda each: age(each.last_event_at_ms, now_ms)),
        row("last response", "traffic", lambda each: age(each.last_response_at_ms, now_ms)),
        *_traffic_rows(variants),
        *_coverage_row([variant.coverage for variant in variants]),
        *_drift_row("category drift", [variant.categories for variant in variants]),
        *_drift_row("item drift", [variant.recommended for variant in variants]),
    ]
    for kind in sorted({kind for variant in variants for kind in variant.responses_with_feedback}):
        counts = [variant.responses_with_feedback.get(kind, 0) for variant in variants]
        shares = [
            share(n / each.responses if each.responses else None) for n, each in zip(counts, variants, strict=True)
        ]
        label = kind if len(kind) <= _LONGEST_LABEL else kind[: _LONGEST_LABEL - 1] + "…"
        table.append(Row(f"with {label}", tuple(shares), tuple(f"n {count(n)}" for n in counts), "feedback"))
    for name in variants[0].metrics:
        table += _metric_rows(experiment, name, variants, least_students)
    return table


def _traffic_rows(variants: list[VariantSummary]) -> list[Row]:
    """Return what the last one to two hours were like; nothing where nobody asked for it."""
    traffic = [variant.traffic for variant in variants]
    recent = [each for each in traffic if each is not None]
    if len(recent) < len(traffic):
        return []
    known = [f"n {count(sum(each.recent.latencies))}" for each in recent]
    asked = tuple(f"n {count(each.recent.responses)}" for each in recent)
    rates = tuple(f"{each.responses_per_second:.3g}" for each in recent)
    empty = tuple(share(each.recent.empty_share) for each in recent)
    table = [Row("responses/s", rates, asked, "traffic"), Row("empty answers", empty, asked, "traffic")]
    if any(sum(each.everything.latencies) for each in recent):
        for part in (0.5, 0.95, 0.99):
            seconds = tuple(_seconds(each.recent.latency_s(part)) for each in recent)
            table.append(Row(f"latency p{part * 100:.0f}", seconds, tuple(known), "traffic"))
    return table


def _coverage_row(found: list[Coverage | None]) -> list[Row]:
    """Return how many different items were shown, where they are counted."""
    if not any(found):
        return []
    values = tuple(ABSENT if each is None else count(each.items) for each in found)
    details = tuple("" if each is None or each.share is None else f"{share(each.share)} of all" for each in found)
    return [Row("different items", values, details, "traffic")]


def _drift_row(label: str, drifts: list[DayDrift | None]) -> list[Row]:
    """Return how far the last whole day is from its reference, where that is known."""
    found = [(each.drift.js, each.drift.psi) if each is not None else (None, None) for each in drifts]
    if not any(js for js, _ in found):
        return []
    values = tuple(ABSENT if js is None else f"{js.value:.3f}" for js, _ in found)
    return [Row(label, values, tuple(_change(*each) for each in found), "traffic")]


def _change(js: Distance | None, psi: Distance | None) -> str:
    """Return whether a distribution has changed: both distances have to be too far for that, as for the alert."""
    if js is None or psi is None:
        return ""
    return "changed" if js.exceeded and psi.exceeded else f"chance < {js.threshold:.3f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    # What is above the last bound of the histogram is given as that bound.
    return f"{'> ' if value * 1000 >= LATENCY_BOUNDS_MS[-1] else ''}{value:.3g}\u202fs"


def _metric_rows(experiment: ExperimentSummary, name: str, variants: list[VariantSummary], least: int) -> list[Row]:
    primary = name == experiment.primary
    metrics = [variant.metrics[name] for variant in variants]
    enough = [variant.students >= least for variant in variants]
    decays = list(metrics[0].decayed)
    table = []
    for label, means, sizes in [
        ("all time", [metric.mean for metric in metrics], [float(metric.count) for metric in metrics]),
        *(
            (
                f"decay {decay}",
                [metric.decayed[decay].mean for metric in metrics],
                [metric.decayed[decay].effective_count or 0.0 for metric in metrics],
            )
            for decay in decays
        ),
    ]:
        shown = [mean if ok else None for mean, ok in zip(means, enough, strict=True)]
        details = [
            "  ".join(part for part in (_against(mean, shown[0]) if place else "", f"n {count(size)}") if part)
            if mean is not None
            else ""
            for place, (mean, size) in enumerate(zip(shown, sizes, strict=True))
        ]
        table.append(Row(label, tuple(map(_mean, shown)), tuple(details), name, primary))
    return table


def sentence(treatment: str, verdict: Verdict) -> str:
    """Return the state of one treatment in a sentence."""
    return f"{treatment}: {verdict.state} – {MEANINGS[verdict.state]}."


class Decision(NamedTuple):
    """What was decided about one treatment."""

    tone: Literal["good", "bad", "open"]
    sentence: str
    reasons: tuple[str, ...]


def decisions(experiment: ExperimentSummary, least_students: int = 1) -> list[Decision]:
    """Return what was decided about each treatment, and why, unless that would be effects on fewer students."""
    verdicts = {} if experiment.judgement is None else experiment.judgement.verdicts
    return [
        Decision(
            _TONES.get(verdict.state, "open"),
            sentence(name, verdict),
            tuple(each.text for each in verdict.reasons if rests_on(verdict.primary, least_students)),
        )
        for name, verdict in verdicts.items()
    ]


def rests_on(comparison: Comparison | GuardrailResult, least_students: int) -> bool:
    """Return whether both variants have so many students there."""
    return min(comparison.control.units, comparison.treatment.units) >= least_students


def notes(experiment: ExperimentSummary, least_students: int = 1) -> list[str]:
    """Return what a reader of the table should know; effects on fewer than `least_students` students are left out."""
    found: list[str] = []
    unnamed = sum(variant.responses_without_user for variant in experiment.variants.values())
    if unnamed:
        found.append(f"{count(unnamed)} responses name no student: each counts as a student of its own.")
    if experiment.crossovers:
        found.append(f"{count(experiment.crossovers)} students saw more than one variant.")
    undefined = sum(metric.undefined for variant in experiment.variants.values() for metric in variant.metrics.values())
    if undefined:
        found.append(
            f"{count(undefined)} rated responses have an undefined nDCG (no gain to be had): left out of its mean."
        )
    found += _skipped(experiment)
    found += _parts(experiment, least_students)
    if any(variant.traffic is not None for variant in experiment.variants.values()):
        found.append("Responses per second, empty answers and latencies are those of the last one to two hours.")
    if any((variant.categories or variant.recommended) is not None for variant in experiment.variants.values()):
        found.append("Drift: Jensen-Shannon distance of the last whole UTC day from the reference.")
    found.append(
        "Means over rated responses; n is the (effective) number of them. Differences describe, verdicts decide."
    )
    return found


def _skipped(experiment: ExperimentSummary) -> list[str]:
    """Return a sentence if events of the experiment were skipped: the same for every treatment."""
    verdicts = {} if experiment.judgement is None else experiment.judgement.verdicts
    return [f"{each.evidence.skipped}." for each in verdicts.values() if each.evidence.skipped is not None][:1]


def _parts(experiment: ExperimentSummary, least_students: int) -> Iterator[str]:
    """Yield a sentence for each part of the students in which an effect is shown, although all are looked at."""
    if experiment.judgement is None:
        return
    for treatment, parts in experiment.judgement.parts.items():
        for of, shown in (("first question in", parts.segments), ("days since the first answer:", parts.ages)):
            for each in shown:
                lower, upper = each.comparison.lower, each.comparison.upper
                enough = rests_on(each.comparison, least_students)
                if each.discovered and enough and lower is not None and upper is not None:
                    yield f"{treatment}, {of} {each.name}: {experiment.primary} {lower:+.4g} to {upper:+.4g}."
