"""The values of answer metrics: of a response as a whole, from its current reactions or from the response event."""

from __future__ import annotations

import math
from typing import Final, final

from monitor.config import ExperimentSettings, MetricSpec
from monitor.engine.id_hash import ITEM_HASH_BYTES
from monitor.engine.response_row import MISSING, Reaction, ResponseRow
from monitor.metrics import to_fixed_point

UNDEFINED: Final = -1
"""The value of a metric that a response does not have."""
_BEYOND_RANGES: Final = 2.0**20
"""A value above every range. Larger values, up to infinite sums of scores, have no form in fixed point."""


@final
class AnswerValues:
    """Computes the answer metrics of an experiment; a pure function of a row."""

    __slots__ = ("_most", "kinds", "metrics")

    def __init__(self, experiment: ExperimentSettings) -> None:
        self.metrics = list(experiment.answer_metrics)
        self.kinds = experiment.answer_kinds
        """Kinds of feedback on which the metrics depend."""
        self._most = [to_fixed_point(metric.most / metric.stored_unit) for metric in self.metrics]

    def compute(self, row: ResponseRow, current_reactions: list[Reaction]) -> tuple[list[int], list[str]]:
        """Return the value of each metric in fixed point, and the names of the metrics whose value was capped.

        `current_reactions` are in ascending order of time.
        """
        values: list[int] = []
        capped: list[str] = []
        for metric, most in zip(self.metrics, self._most, strict=True):
            number = _value(metric, row, current_reactions)
            if number is None:
                values.append(UNDEFINED)
                continue
            value = to_fixed_point(min(number, _BEYOND_RANGES) / metric.stored_unit)
            if value > most:
                capped.append(metric.name)
                value = most
            values.append(value)
        return values, capped


def _value(metric: MetricSpec, row: ResponseRow, current_reactions: list[Reaction]) -> float | None:
    """Return the value of a metric before the cap; None without a value."""
    if metric.kind:
        return _feedback_value(metric, [reaction[5] for reaction in current_reactions if reaction[4] == metric.kind])
    if metric.measure == "items_shown":
        return float(len(row.item_hashes) // ITEM_HASH_BYTES)
    if metric.measure == "empty":
        return float(not row.item_hashes)
    if row.latency_ms == MISSING:
        return None
    return float(row.latency_ms) if metric.measure == "latency_ms" else float(row.latency_ms > metric.threshold)


def _feedback_value(metric: MetricSpec, scores: list[float]) -> float | None:
    """Return the value of a metric from the scores of the current reactions of its kind, in ascending order of time."""
    if metric.measure == "sum":
        return math.fsum([min(score, _BEYOND_RANGES) for score in scores])
    if metric.measure == "score":
        return scores[-1] if scores else metric.silence
    return float(max(scores, default=-1.0) >= metric.threshold)
