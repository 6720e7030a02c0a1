"""Stored sums → estimates, verdicts, subgroups, snapshots: pure functions without I/O."""

from __future__ import annotations

from monitor.analysis.drift import SMALLEST_ALPHA, Counts, DayDrift, Distance, Drift, day_drift, measure_drift
from monitor.analysis.interim_history import Split, exposure_days, looks, splits, students_by
from monitor.analysis.item_overview import Answer, EntryKind, Overview, Variety, categories
from monitor.analysis.item_sums import Coverage, StoredItems, Sums
from monitor.analysis.plan import shares_at
from monitor.analysis.snapshots import DecayedThen, Past, Snapshot, snapshot, superfluous
from monitor.analysis.summary import (
    DecayedMean,
    ExperimentSummary,
    MetricSummary,
    Summary,
    TrafficSummary,
    VariantSummary,
    iso,
)
from monitor.analysis.triage import Entry, first_to_look_at
from monitor.analysis.verdicts import Judge, Judgement, Parts

__all__ = [
    "SMALLEST_ALPHA",
    "Answer",
    "Counts",
    "Coverage",
    "DayDrift",
    "DecayedMean",
    "DecayedThen",
    "Distance",
    "Drift",
    "Entry",
    "EntryKind",
    "ExperimentSummary",
    "Judge",
    "Judgement",
    "MetricSummary",
    "Overview",
    "Parts",
    "Past",
    "Snapshot",
    "Split",
    "StoredItems",
    "Summary",
    "Sums",
    "TrafficSummary",
    "VariantSummary",
    "Variety",
    "categories",
    "day_drift",
    "exposure_days",
    "first_to_look_at",
    "iso",
    "looks",
    "measure_drift",
    "shares_at",
    "snapshot",
    "splits",
    "students_by",
    "superfluous",
]
