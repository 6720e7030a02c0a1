"""A verdict for people: the state in a sentence, why, and the numbers in a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from monitor.config import LATENCY, is_share
from monitor.export.presentation import ABSENT, count, sentence, share
from monitor.export.terminal import simple_table
from monitor.inference import Comparison, Estimand, GuardrailResult, State, Verdict
from monitor.parts import Parts
from monitor.summary import ExperimentSummary, iso

EXIT_CODES: Final[Mapping[State, int]] = {
    "ship": 0,
    "non_inferior": 0,
    "continue": 10,
    "insufficient_data": 10,
    "stop_harm": 20,
    "invalid": 20,
    "futile": 20,
}
_ESTIMANDS: Final[Mapping[Estimand, str]] = {"closed": "closed", "live": "live ≈"}
_LEGEND: Final = "closed: students whose window is over, they decide; live ≈: all responses so far, approximate"


def render_verdicts(experiment: ExperimentSummary, *, only: str | None = None) -> RenderableType:
    """Return an experiment's verdicts, or only that of one treatment, with reasons and numbers."""
    judgement = experiment.judgement
    if judgement is None:
        return Text("")
    parts: list[RenderableType] = [Text(f"{experiment.name}, {_when(judgement.at_ms)}", style="dim")]
    for name, verdict in judgement.verdicts.items():
        if only in (None, name):
            parts.append(Text(sentence(name, verdict), style="bold"))
            parts += [Text(f"  because {reason.text}") for reason in verdict.reasons]
            parts += [Text(f"  note    {note.text}") for note in verdict.notes]
            parts.append(_comparisons(experiment.control, name, judgement.comparisons[name]))
            parts += [Text(f"  {line}") for line in _facts(verdict)]
            parts += [Text(f"  {line}") for line in _within(judgement.parts[name])]
    return Group(*parts, Text(_LEGEND, style="dim"))


def _comparisons(
    control: str, treatment: str, comparisons: Mapping[str, Mapping[Estimand, Comparison]]
) -> RenderableType:
    table = simple_table("", control, treatment, "effect", "between", "students", no_wrap=True)
    for name, both in comparisons.items():
        table.add_section()
        for estimand, each in both.items():
            arms = each.control, each.treatment
            table.add_row(
                Text(f"{name}  {_ESTIMANDS[estimand]}"),
                *[_number(arm.mean) for arm in arms],
                _signed(each.difference.effect),
                ABSENT if each.lower is None else f"{_signed(each.lower)} … {_signed(each.upper)}",
                " + ".join(count(arm.units) for arm in arms),
                style="" if estimand == "closed" else "dim",
            )
    return table


def _facts(verdict: Verdict) -> Iterator[str]:
    """Yield guardrails, sample ratio, crossovers and what is left to wait for, a line each."""
    for result in verdict.guardrails:
        yield _guardrail(result)
    ratio, evidence = verdict.sample_ratio, verdict.evidence
    off = max((phase.deviation for phase in ratio.phases), default=0.0)
    state = "an alarm" if ratio.alarm else "as intended"
    yield f"sample ratio: {state}; at most {share(off)} off, anytime p = {ratio.p:.2g}"
    yield f"crossovers: {count(evidence.crossovers)} of {count(evidence.students)} students, left out"
    if verdict.days_to_resolve is None:
        yield f"days until an effect of {evidence.criteria.mde:.4g} is resolved: not known"
    else:
        yield f"days until an effect of {evidence.criteria.mde:.4g} is resolved: {_whole(verdict.days_to_resolve)}"


def _when(at_ms: int) -> str:
    return f"as of {iso(at_ms)}" if at_ms else "before the first event"


def _whole(days: float) -> str:
    return f"{max(days, 1):.0f}" if days else "0"


def _within(parts: Parts) -> Iterator[str]:
    """Yield the effect within each part of the students that has an interval, a line each."""
    for title, found in (("first question in", parts.segments), ("days since first answer", parts.ages)):
        for each in found:
            if each.comparison.lower is not None:
                bounds = f"{_signed(each.comparison.lower)} … {_signed(each.comparison.upper)}"
                said = "shown" if each.discovered else "not shown"
                yield f"{title} {each.name}: {_signed(each.comparison.difference.effect)}, between {bounds}; {said}"


def _guardrail(result: GuardrailResult) -> str:
    rail = result.guardrail
    bounds = ABSENT
    if result.most_harm is not None:
        least = ABSENT if result.least_harm is None else _harm(rail.name, result.least_harm)
        bounds = f"{least} … {_harm(rail.name, result.most_harm)}"
    return f"guardrail {rail.name}: {result.state}; worse by {bounds}, tolerable is {_harm(rail.name, rail.margin)}"


def _harm(watched: str, value: float) -> str:
    """Return a difference in the unit of what is watched."""
    if is_share(watched):
        return f"{100 * value:+.2f} % of responses"
    return f"{value:+.0f} ms" if watched == LATENCY else _signed(value)


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4f}"


def _signed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:+.4f}"
