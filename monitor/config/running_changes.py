"""Changes of a running experiment: shares and variants become allocations, and changed criteria become phrases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from monitor.config.definitions import aggregate_definitions, describe_duration, describe_value
from monitor.config.display_texts import DisplayTexts
from monitor.config.settings import AllocationSettings, ExperimentSettings, GuardrailSettings

ChangeKind = Literal["criteria", "shares", "variants", "definition"]
"""What was changed while an experiment ran: criteria of verdicts, shares, the set of variants, or stored aggregates."""
_CRITERIA: Final = ("mde", "margin", "alpha", "min_days", "population")


def carry_allocations(
    previous: ExperimentSettings, configured: ExperimentSettings, changed_at_ms: int
) -> ExperimentSettings:
    """Return the configured experiment with the shares that applied before the time of the change.

    `previous` is the result of the last call, or the first configuration. Shares before `changed_at_ms` are the
    previous ones, except from the first declared allocation on: the file declares all shares from then on. If the
    configured shares at the time of the change differ from the previous ones, they are an allocation from that time. A
    variant that the configuration lacks is kept without a share, a new variant has no share before the change. The same
    configuration again changes nothing. Before `starts_at`, the configuration is returned unchanged.
    """
    if configured.starts_at_ms is not None and changed_at_ms <= configured.starts_at_ms:
        return configured
    declared = configured.decision.allocations
    carried = tuple(
        allocation
        for allocation in previous.decision.allocations
        if allocation.from_ms <= changed_at_ms and (not declared or allocation.from_ms < declared[0].from_ms)
    )
    new_variants = {name: 0.0 for name in configured.variants if name not in previous.variants}
    carried_experiment = replace(
        configured,
        variants=MappingProxyType({**previous.variants, **new_variants}),
        decision=replace(configured.decision, allocations=(*carried, *declared)),
        texts=_carry_texts(previous, configured),
    )
    shares = _allocated(configured.intended_shares(changed_at_ms))
    if _allocated(carried_experiment.intended_shares(changed_at_ms)) == shares:
        return carried_experiment
    earlier = [allocation for allocation in carried if allocation.from_ms < changed_at_ms]
    change = AllocationSettings(changed_at_ms, MappingProxyType(shares))
    return replace(carried_experiment, decision=replace(configured.decision, allocations=(*earlier, change, *declared)))


def _carry_texts(previous: ExperimentSettings, configured: ExperimentSettings) -> DisplayTexts:
    """Return the configured texts, and the earlier texts of the variants that the configuration lacks.

    A dropped variant loses a label that a configured variant has as its label or name, so that labels stay unique.
    """
    labels = {configured.texts.variant_label(name) for name in configured.variants} | configured.variants.keys()
    dropped = {
        name: replace(text, label="") if text.label in labels else text
        for name, text in previous.texts.variants.items()
        if name not in configured.variants
    }
    return replace(configured.texts, variants={**dropped, **configured.texts.variants})


def describe_allocation_changes(
    previous: ExperimentSettings, carried: ExperimentSettings, changed_at_ms: int
) -> list[tuple[ChangeKind, str]]:
    """Return (kind, phrase) of each difference of the intended shares; `carried` is from `carry_allocations`."""
    before, after = (_allocated(experiment.intended_shares(changed_at_ms)) for experiment in (previous, carried))
    added = [name for name in carried.variants if name in after.keys() - before.keys()]
    added += [name for name in carried.variants if name not in previous.variants and name not in added]
    dropped = [name for name in previous.variants if name in before.keys() - after.keys()]
    changes: list[tuple[ChangeKind, str]] = []
    if before != after or added:
        names = [name for name in carried.variants if name in {*before, *after, *added}]
        shares = f"shares of {', '.join(names)}: {_list_shares(before, names)} → {_list_shares(after, names)}"
        phrases = [f"{name} added" for name in added] + [f"{name} dropped" for name in dropped] + [shares]
        changes.append(("variants" if added or dropped else "shares", "; ".join(phrases)))
    old, new = (
        {allocation.from_ms: _allocated(allocation.shares) for allocation in experiment.decision.allocations}
        for experiment in (previous, carried)
    )
    for from_ms in sorted({*old, *new} - {changed_at_ms}):
        if old.get(from_ms) != new.get(from_ms):
            time = f"{datetime.fromtimestamp(from_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
            new_shares = new.get(from_ms, {})
            text = f"shares of {', '.join(new_shares)} from {time}: {_list_shares(new_shares, list(new_shares))}"
            changes.append(("shares", text if new_shares else f"no change of shares at {time}"))
    return changes


def describe_criteria_changes(previous: ExperimentSettings, configured: ExperimentSettings) -> list[str]:
    """Return a phrase for each changed setting on which verdicts depend, but no stored sums and no shares."""
    old, new = previous.decision, configured.decision
    phrases = [
        _describe_change(name, getattr(old, name), getattr(new, name), _describe_criterion) for name in _CRITERIA
    ]
    phrases.append(_describe_change("control", previous.control, configured.control))
    if "primary" not in aggregate_definitions(previous).keys() | aggregate_definitions(configured).keys():
        phrases.append(_describe_change("primary", previous.primary, configured.primary))
    phrases.append(_describe_change("lower_is_better", _lower_is_better(previous), _lower_is_better(configured)))
    for name in ("closing_delay", "allowed_lateness"):
        old_ms, new_ms = (getattr(experiment, f"{name}_ms") or None for experiment in (previous, configured))
        phrases.append(_describe_change(name, old_ms, new_ms, describe_duration))
    return [phrase for phrase in phrases if phrase is not None] + list(_guardrail_changes(previous, configured))


def _lower_is_better(experiment: ExperimentSettings) -> list[str]:
    return [metric.name for metric in experiment.metrics if metric.lower_is_better]


def _guardrail_changes(previous: ExperimentSettings, configured: ExperimentSettings) -> Iterator[str]:
    """Yield a phrase for each guardrail that differs; guardrails with new or removed sums are definitions."""
    old, new = (
        {guardrail.metric: guardrail for guardrail in experiment.decision.guardrails}
        for experiment in (previous, configured)
    )
    for metric in dict.fromkeys((*old, *new)):
        if (metric in old and metric in new) or metric not in _metrics_with_new_sums(previous, configured):
            phrase = _describe_change(f"guardrail {metric}", old.get(metric), new.get(metric), _describe_guardrail)
            if phrase is not None:
                yield phrase


def _metrics_with_new_sums(previous: ExperimentSettings, configured: ExperimentSettings) -> set[str]:
    old, new = (
        {*(metric.name for metric in experiment.metrics), *experiment.student_metrics}
        for experiment in (previous, configured)
    )
    return old ^ new


def _describe_change(name: str, old: Any, new: Any, describe: Callable[[Any], str] = describe_value) -> str | None:
    return None if old == new else f"{name} {describe(old)} → {describe(new)}"


def _describe_criterion(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else describe_value(value)


def _describe_guardrail(guardrail: GuardrailSettings | None) -> str:
    if guardrail is None:
        return "none"
    margin = f"{'relative_margin' if guardrail.is_relative else 'margin'} {guardrail.margin:g}"
    timeout = "" if guardrail.timeout_ms is None else f", timeout_ms {guardrail.timeout_ms:g}"
    return f"{guardrail.harmful_direction} by {margin}{timeout}"


def _allocated(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares above 0."""
    return {name: share for name, share in shares.items() if share}


def _list_shares(shares: Mapping[str, float], names: list[str]) -> str:
    return ", ".join(f"{shares.get(name, 0.0):.4g}" for name in names)
