"""The present states of all experiments, as the rules of messages need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.analysis import (
    ExperimentObservation,
    ExperimentSummary,
    StoreSummary,
    list_sample_ratio_mismatches,
    message_state,
)
from monitor.clock import HOUR_MS
from monitor.config import ExperimentSettings
from monitor.export import Freshness, read_freshness
from monitor.state import BackfillState, ServiceRecords, StoreReader, read_backfills, read_service_records

_RECENT_RECORD_MS: Final = 60_000
_LARGE_LAG_EVENTS: Final = 10_000
_MIN_SILENCE_MS: Final = HOUR_MS
_MIN_RESPONSES_DUE: Final = 10.0
"""A random gap of ten usual ones has a probability of 1 in 22 000. The page marks gaps of three, which are common."""

_MIN_RESPONSES: Final = 100
"""With fewer responses, the usual rate is not known: the experiment may be a developer's test."""


@dataclass(frozen=True, slots=True)
class StoreObservation:
    """The states of all experiments at a moment, with the results that a message contains."""

    summary: StoreSummary
    freshness: Mapping[str, Freshness]
    experiments: tuple[ExperimentObservation, ...]


def observe_store(reader: StoreReader, now_ms: int) -> StoreObservation | None:
    """Return the present states; None while the service reads a backlog. Raises `StoreUnavailable`.

    During a backlog, after a first start or an outage, the states are those of past hours, and later events may
    change them soon.
    """
    summary = reader.read_summary()
    if not _is_up_to_date(read_service_records(reader.store), summary, now_ms):
        return None
    freshness, backfills = read_freshness(reader, summary, now_ms), read_backfills(reader.store)
    observations = tuple(
        _observe_experiment(
            summary.experiments[settings.name],
            settings,
            freshness.get(settings.name),
            backfills.get(reader.numbers[settings.name]),
            now_ms,
        )
        for settings in reader.experiments
        if summary.experiments[settings.name].analysis is not None
        and not summary.experiments[settings.name].history.is_archived
    )
    return StoreObservation(summary, freshness, observations)


def _is_up_to_date(service: ServiceRecords, summary: StoreSummary, now_ms: int) -> bool:
    """Return whether the workers have read all events, or all but some of the last hour."""
    if service.newest_lag is None:
        return False
    seen_ms, lag_events = service.newest_lag
    newest_ms = summary.totals_as_of_ms or summary.as_of_ms
    if all(experiment.last_event_at_ms is None for experiment in summary.experiments.values()):
        # The worker may not know its backlog yet.
        return False
    is_small_lag = lag_events < _LARGE_LAG_EVENTS and newest_ms >= now_ms - HOUR_MS
    return now_ms - seen_ms < _RECENT_RECORD_MS and (lag_events == 0 or is_small_lag)


def _observe_experiment(
    summary: ExperimentSummary,
    settings: ExperimentSettings,
    freshness: Freshness | None,
    backfill: BackfillState | None,
    now_ms: int,
) -> ExperimentObservation:
    analysis, history = summary.analysis, summary.history
    assert analysis is not None
    responses = sum(variant.responses for variant in summary.variants.values())
    is_filled = history.backfill is None and not history.is_previous_definition
    is_backfilled = is_filled and backfill is not None and backfill.state == "complete" and backfill.records_total > 0
    has_ended = settings.ends_at_ms is not None and settings.ends_at_ms <= now_ms
    return ExperimentObservation(
        name=summary.name,
        as_of_ms=analysis.as_of_ms,
        verdicts={
            treatment: message_state(verdict) if is_filled else None for treatment, verdict in analysis.verdicts.items()
        },
        has_sample_ratio_mismatch=is_filled and any(map(list_sample_ratio_mismatches, analysis.verdicts.values())),
        is_silent=None if freshness is None or responses < _MIN_RESPONSES else _is_silent(freshness),
        definition_version=history.definition_version,
        backfill_started_ms=backfill.started_ms if is_backfilled and backfill is not None else 0,
        ended_ms=settings.ends_at_ms if has_ended and settings.ends_at_ms is not None else 0,
        declared_at_ms=history.declared_at_ms or 0,
    )


def _is_silent(freshness: Freshness) -> bool:
    return freshness.is_stale and freshness.age_ms >= _MIN_SILENCE_MS and freshness.responses_due >= _MIN_RESPONSES_DUE
