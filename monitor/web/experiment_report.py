"""The report on one experiment: one page that explains itself, for whoever decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import ExperimentSettings, is_share
from monitor.export import ABSENT, MEANINGS, Account, count, rests_on, sentence
from monitor.stats import SHOWN_UNITS, Comparison, GuardrailResult, GuardrailState, Segment, State, Verdict
from monitor.web import experiment_charts as charts
from monitor.web.pages import template

_HEADLINES: Final[Mapping[State, tuple[str, str]]] = {
    "ship": ("Ship it", "good"),
    "non_inferior": ("It may go out", "good"),
    "stop_harm": ("Stop it", "bad"),
    "invalid": ("No fair comparison", "bad"),
    "futile": ("No gain that matters", "calm"),
    "insufficient_data": ("Too early to say", "calm"),
    "continue": ("Undecided: go on", "calm"),
}
"""A few words, and the class that colours them."""
_MOST_CHANGES: Final = 50
_GUARDRAILS: Final[Mapping[GuardrailState, str]] = {
    "held": "shown to be no worse than is tolerable",
    "crossed": "shown to be worse than is tolerable",
    "open": "neither is shown yet",
    "unknown": "too few students, or nothing varies",
}


def render_experiment_report(told: Account) -> str:
    """Return the page: nothing in it is fetched from anywhere, and there are no scripts."""
    verdicts = told.judgement.verdicts
    return template("experiment.html").render(
        size=_size(told),
        headlines=[_headline(told, *each) for each in verdicts.items()],
        treatments=[_treatment(told, *each) for each in verdicts.items()],
        told=told,
        enough=partial(_enough, told),
        figure=figure,
        part=_part,
        moment=moment,
        students=charts.students(told),
        unnamed=sum(variant.responses_without_user for variant in told.summary.variants.values()),
        watched={
            "plots": list(charts.decayed(told)),
            "noted": sum(each.noted for each in told.watched),
            "again": sum(not each.noted for each in told.watched),
        },
        legend=charts.legend(told),
        history=[
            {"name": name, "rows": rows[-_MOST_CHANGES:], "left_out": max(len(rows) - _MOST_CHANGES, 0)}
            for name in verdicts
            if (rows := list(_said(told, name)))
        ],
        noted=list(charts.noted(told)),
        settings=told.settings,
        criteria=next((each.evidence.criteria for each in verdicts.values()), None),
        adjusted=_adjusted_by(told),
        shown=SHOWN_UNITS,
        meanings=MEANINGS,
        rails=_GUARDRAILS,
    )


def _size(told: Account) -> str | None:
    """Return since when and on how much the page rests; None before the first student."""
    if not told.splits:
        return None
    began = moment(told.splits[0].at_ms).partition(",")[0]
    students = sum(told.splits[-1].students.values())
    responses = sum(variant.responses for variant in told.summary.variants.values())
    return f"{count(students)} students and {count(responses)} responses since {began}"


def moment(at_ms: int) -> str:
    """Return a time for people, to the minute."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def figure(value: float | None, *, sign: bool = False) -> str:
    """Return a number with four digits after the point."""
    return ABSENT if value is None else _minus(f"{round(value, 4) + 0.0:{'+' if sign else ''}.4f}")


def _part(part: float | None, *, sign: bool = False) -> str:
    return (
        ABSENT if part is None else _minus(f"{round(part, 3) + 0.0:{'+' if sign else ''}.1%}".replace("%", "\u202f%"))
    )


def _minus(text: str) -> str:
    return text.replace("-", "−")


def disagreements(settings: ExperimentSettings, compared: Mapping[str, Comparison]) -> dict[str, bool]:
    """Return what to say of each nDCG and DCG (or CG) that move in opposite ways, of which one at least is shown to.

    True where both are shown: then they contradict each other, as nDCG by the ideal of the shown list may do. Of
    several DCGs the primary one is enough.
    """
    measures = {metric.name: metric.measure for metric in settings.metrics if metric.name in compared}
    normed = [name for name, measure in measures.items() if measure == "ndcg"]
    gains = [name for name, measure in measures.items() if measure in {"cg", "dcg"}]
    gains = [settings.primary] if settings.primary in gains else gains
    found = {}
    for one, other in ((one, other) for one in normed for other in gains):
        a, b = compared[one], compared[other]
        if _direction(a) * _direction(b) < 0 and (_shown(a) or _shown(b)):
            both = _shown(a) and _shown(b)
            moved = f"{_moves(one, a)}, {_moves(other, b)}."
            said = f"disagree: {moved} {_why(settings, other)}" if both else f"do not move together: {moved}"
            found[f"{one} and {other} {said}"] = both
    return found


def _direction(comparison: Comparison) -> int:
    effect = comparison.difference.effect or 0.0
    return (effect > 0) - (effect < 0)


def _shown(comparison: Comparison) -> bool:
    lower, upper = comparison.lower, comparison.upper
    return lower is not None and upper is not None and (lower > 0 or upper < 0)


def _moves(name: str, comparison: Comparison) -> str:
    said = f"{name} is {'up' if _direction(comparison) > 0 else 'down'}"
    if comparison.lower is None:
        return f"{said} (too few students to be sure)"
    bounds = f"{figure(comparison.lower, sign=True)} to {figure(comparison.upper, sign=True)}"
    return f"{said} ({bounds}{'' if _shown(comparison) else ', so not shown'})"


def _why(settings: ExperimentSettings, gain: str) -> str:
    if settings.ideal == "shown":
        return (
            "nDCG compares each answer with the best order of the videos that this answer itself has (ideal: shown), "
            f"so a variant that finds less can look better ordered. Go by {gain}."
        )
    return "Both order single answers alike where they cut at the same rank: look at what each of them leaves out."


def _headline(told: Account, name: str, verdict: Verdict) -> dict[str, Any]:
    enough = told.shows(verdict.primary)
    compared = {told.settings.primary: verdict.primary, **dict(verdict.diagnostics)} if enough else {}
    said = disagreements(told.settings, compared)
    headline, mood = _HEADLINES[verdict.state]
    return {
        "headline": headline,
        "mood": mood,
        "sentence": sentence(name, verdict),
        "effect": _effect(told, name, verdict),
        "disagreements": [text for text, both in said.items() if both],
        "reasons": [reason.text for reason in verdict.reasons if enough],
        "notes": [*(note.text for note in verdict.notes if enough), *(text for text, both in said.items() if not both)],
        "days": _days(verdict),
    }


def _effect(told: Account, treatment: str, verdict: Verdict) -> str:
    settings, primary = told.settings, verdict.primary
    if not _enough(told, primary) or primary.difference.effect is None:
        return f"Nothing is known of {settings.primary} yet: too few students have had their first days."
    said = (
        f"{settings.primary} per student is {figure(primary.treatment.mean)} with {treatment} and "
        f"{figure(primary.control.mean)} with {settings.control}: a difference of "
        f"{figure(primary.difference.effect, sign=True)}"
    )
    if primary.difference.relative_effect is not None:
        said += f" ({_part(primary.difference.relative_effect, sign=True)})"
    if min(primary.control.units, primary.treatment.units) < SHOWN_UNITS:
        return f"{said}. Below {SHOWN_UNITS} students per variant there is no telling how sure that is."
    if primary.lower is None:
        return f"{said}. It does not vary between students, so there is no telling how sure that is."
    return (
        f"{said}. With {100 * (1 - primary.alpha):.4g}\u202f% confidence the true difference is between "
        f"{figure(primary.lower, sign=True)} and {figure(primary.upper, sign=True)}, however often one has looked."
    )


def _enough(told: Account, compared: Comparison) -> bool:
    return rests_on(compared, max(told.least_students, 1))


def _days(verdict: Verdict) -> str:
    mde = f"{verdict.evidence.criteria.mde:.4g}"
    days = verdict.days_to_resolve
    if days is None:
        return f"When an effect of {mde} could be told from none is not known."
    if days == 0:
        return f"The interval is narrow enough to tell an effect of {mde} from none."
    return (
        f"At today's rate it takes about {max(days, 1):.0f} more days until an effect of {mde} can be told from none."
    )


def _treatment(told: Account, name: str, verdict: Verdict) -> dict[str, Any]:
    criteria = verdict.evidence.criteria
    return {
        "name": name,
        "plot": charts.effect(told, name, verdict),
        "live": sum(each.value is not None for each in charts.live(told, name).points) > 1,
        "margin": criteria.margin,
        "mde": f"{criteria.mde:.4g}",
        "guardrails": [_guardrail(told, name, place, each) for place, each in enumerate(verdict.guardrails)],
        "share": charts.split(told, name),
        "segments": _parts(told, f"effect of {name} by category", told.judgement.parts[name].segments),
        "ages": _parts(told, f"effect of {name} by days since first exposure", told.judgement.parts[name].ages),
    }


def _parts(told: Account, title: str, parts: Sequence[Segment]) -> dict[str, Any]:
    shown = [(each, each.comparison if _enough(told, each.comparison) else None) for each in parts]
    return {"title": title, "rows": parts, "plot": charts.parts(title, shown)}


def _guardrail(told: Account, name: str, place: int, result: GuardrailResult) -> dict[str, Any]:
    rail = result.guardrail
    said = _part if is_share(rail.name) else figure
    shown = (result.control.mean, result.treatment.mean, charts.harm_of(result), result.least_harm, result.most_harm)
    enough = told.shows(result)
    return {
        "name": f"{rail.name} ({rail.bad} is bad)",
        "margin": said(rail.margin),
        "state": result.state,
        "cells": [said(value if enough else None) for value in shown],
        "plot": charts.guardrail(told, name, place),
    }


def _said(told: Account, treatment: str) -> Iterator[list[str]]:
    """Yield when what was said of a treatment changed, by the snapshots."""
    before = None
    for hour, then in told.past.items():
        now = then.treatments.get(treatment)
        if now is not None and now.state != before:
            at_ms = hour * HOUR_MS
            shown = told.showed(treatment, at_ms)
            bounds = [figure(value if shown else None, sign=True) for value in now.closed]
            yield [moment(at_ms), now.state, *bounds, MEANINGS[now.state]]
            before = now.state


def _adjusted_by(told: Account) -> str | None:
    """Return the days from before the experiment that estimates were adjusted by; None where none was."""
    before_ms = told.settings.pre_period_ms
    adjusted = any(verdict.unadjusted is not None for verdict in told.judgement.verdicts.values())
    return f"{before_ms / DAY_MS:g}" if before_ms is not None and adjusted else None
