"""The plots of a report on one experiment: what came in, as lines with bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from monitor.analysis import DecayedThen, Judgement
from monitor.clock import HOUR_MS
from monitor.config import is_share
from monitor.export import Account
from monitor.stats import Comparison, GuardrailResult, Segment, Verdict, band_constant
from monitor.web.charts import Bar, Level, Line, Point, chart, forest

_MOST_STYLES: Final = 6
_BAND_FROM: Final = 50
"""Effective responses: with fewer a decayed mean leaves its band far more often than is said."""


def legend(told: Account) -> list[tuple[str, str]]:
    """Return (variant, class of its line), the control first."""
    control = told.settings.control
    others = [name for name in told.summary.variants if name != control]
    return [(control, "v0"), *((name, f"v{1 + place % _MOST_STYLES}") for place, name in enumerate(others))]


def live(told: Account, treatment: str) -> Line:
    """Return the effect over all responses so far, as it was noted at the time."""
    noted = [(hour, then.treatments[treatment]) for hour, then in told.past.items() if treatment in then.treatments]
    points = [
        Point(at_ms, then.live[0] if told.showed(treatment, at_ms) else None)
        for at_ms, then in ((hour * HOUR_MS, then) for hour, then in noted)
    ]
    return Line("all responses", "live", points, band=False)


def effect(told: Account, treatment: str, verdict: Verdict) -> str | None:
    """Return the effect on the primary metric, with the bounds that decide."""
    criteria = verdict.evidence.criteria
    levels = [Level("no difference", 0.0, "zero"), Level("the smallest effect of interest", criteria.mde)]
    if criteria.margin:
        levels.append(Level("the tolerable loss", -criteria.margin))
    closed = Line("effect", "treatment", [_step(told, look, treatment) for look in told.looks])
    return chart(f"effect of {treatment} on {told.settings.primary} over time", [closed, live(told, treatment)], levels)


def _step(told: Account, look: Judgement, treatment: str) -> Point:
    primary = look.verdicts[treatment].primary
    if primary.lower is None or not told.shows(primary):
        # A value without a band would say more than is known.
        return Point(look.at_ms, None)
    return Point(look.at_ms, primary.difference.effect, primary.lower, primary.upper)


def harm_of(result: GuardrailResult) -> float | None:
    """Return the observed effect in the bad direction."""
    observed = result.difference.effect
    return None if observed is None else observed if result.guardrail.bad == "up" else -observed


def guardrail(told: Account, treatment: str, place: int) -> str | None:
    """Return the harm on one of the guardrails, with its bounds and what is tolerable."""
    results = [(look.at_ms, look.verdicts[treatment].guardrails[place]) for look in told.looks]
    points = [
        Point(at_ms, harm_of(each), each.least_harm, each.most_harm)
        if each.least_harm is not None and told.shows(each)
        else Point(at_ms, None)
        for at_ms, each in results
    ]
    rail = results[-1][1].guardrail
    levels = [Level("no harm", 0.0, "zero"), Level("tolerable", rail.margin, "limit")]
    title = f"harm of {treatment} on {rail.name} over time"
    return chart(title, [Line("harm", "harm", points)], levels, percent=is_share(rail.name))


def parts(title: str, shown: Sequence[tuple[Segment, Comparison | None]]) -> str | None:
    """Return the effect within parts of the students; those whose comparison is not shown have only their name."""
    bars = []
    for each, found in shown:
        # A value without an interval would say more than is known.
        known = found if found is not None and found.lower is not None else None
        value = None if known is None else known.difference.effect
        bounds = (None, None) if known is None else (known.lower, known.upper)
        bars.append(Bar(each.name, value, *bounds, marked=each.discovered))
    return forest(title, bars)


def split(told: Account, treatment: str) -> str | None:
    """Return the share of students in a variant in the allocation phase of the time, beside the intended one."""
    observed: list[Point] = []
    intended: list[Point] = []
    phases = 1
    for each in told.splits:
        if len(each.sample_ratio.phases) > phases:
            # Another phase is another line.
            phases = len(each.sample_ratio.phases)
            observed.append(Point(each.at_ms, None))
            intended.append(Point(each.at_ms, None))
        arm = next((arm for arm in each.sample_ratio.phases[-1].arms if arm.variant == treatment), None)
        if arm is not None and arm.observed is not None:
            observed.append(Point(each.at_ms, arm.observed, *arm.bounds()))
            intended.append(Point(each.at_ms, arm.intended))
    lines = [Line("intended", "intended", intended, band=False), Line("observed", "treatment", observed)]
    return chart(f"share of students in {treatment} over time", lines, percent=True)


def students(told: Account) -> str | None:
    """Return the students of each variant so far."""
    lines = [
        Line(name, style, [Point(each.at_ms, float(each.students[name])) for each in told.splits], band=False)
        for name, style in legend(told)
    ]
    return chart("students over time, by variant", lines, [Level("none", 0.0, "zero")])


def noted(told: Account) -> Iterator[tuple[str, str]]:
    """Yield plots, and what they are of, of what only the snapshots know; none of fewer than two."""
    if len(told.past) > 1:
        past = [(hour * HOUR_MS, then) for hour, then in told.past.items()]
        responses, rated = [], []
        for name, style in legend(told):
            known = [(at_ms, then.variants[name]) for at_ms, then in past if name in then.variants]
            responses.append(Line(name, style, [Point(at_ms, each.responses) for at_ms, each in known]))
            shares = [(at_ms, each.rated_responses / each.responses) for at_ms, each in known if each.responses]
            rated.append(Line(name, style, [Point(at_ms, share) for at_ms, share in shares]))
        crossovers = Line("crossovers", "harm", [Point(at_ms, then.crossovers or None) for at_ms, then in past])
        zero = Level("none", 0.0, "zero")
        for title, lines, levels, percent in (
            ("responses so far, by variant", responses, [zero], False),
            ("rated responses of those so far, by variant", rated, [], True),
            ("students who saw more than one variant so far", [crossovers], [zero], False),
        ):
            plot = chart(title, lines, levels, percent=percent)
            if plot is not None:
                yield title, plot


def decayed(told: Account) -> Iterator[dict[str, Any]]:
    """Yield a plot for each decay, its bands as wide as they have to be to hold over all of it at once."""
    for decay in told.settings.decay:
        times = [(each.at_ms, each.means[decay.name]) for each in told.watched if decay.name in each.means]
        constant = None
        if decay.half_life_ms is not None and len(times) > 1:
            constant = band_constant((times[-1][0] - times[0][0]) / decay.half_life_ms)
        lines = [
            Line(name, style, [_mean(at_ms, means.get(name), constant) for at_ms, means in times])
            for name, style in legend(told)
        ]
        yield {
            "decay": decay.name,
            "constant": None if constant is None else f"{constant:.2f}",
            "plot": chart(f"{told.settings.primary}, decayed by {decay.name}, by variant", lines),
        }


def _mean(at_ms: int, then: DecayedThen | None, constant: float | None) -> Point:
    if then is None or then.mean is None:
        return Point(at_ms, None)
    known = then.effective_count is not None and then.effective_count >= _BAND_FROM
    if constant is None or then.standard_error is None or not known:
        return Point(at_ms, then.mean)
    half = constant * then.standard_error
    return Point(at_ms, then.mean, then.mean - half, then.mean + half)
