"""An experiment as the worker needs it, and the units in which it forgets."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from monitor.aggregates import Layout, bucket_span_ms
from monitor.config import ExperimentSettings
from monitor.engine.accumulator import Accumulator
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import MISSING, NO_RESPONSE, PRE_PERIOD
from monitor.engine.traffic_accumulator import TrafficAccumulator
from monitor.ingest.items import ItemCounts
from monitor.store.keys import Keys

HOUR_MS: Final = 3_600_000
"""Rows are noted for the sweep by the hour of their event."""

PENDING_CLASS: Final = "p"
"""Stands for the experiment of feedback whose response is not known."""


@final
class Experiment:
    """One experiment as the engine needs it: its number in the store, its compiled rules, its arms."""

    __slots__ = (
        "_before_ms", "_categories", "_spans_ms", "arms", "counts_items", "ends_ms", "kept_days", "layout", "number",
        "rules", "settings", "starts_ms", "sums_width",
    )  # fmt: skip

    def __init__(self, number: int, settings: ExperimentSettings) -> None:
        self.number = number
        self.settings = settings
        self.counts_items = settings.items is not None
        self.rules = GradingRules(settings)
        self.layout = Layout.of(settings)
        self.sums_width = self.layout.sums_width
        self.kept_days = self.layout.kept_days
        self._spans_ms = [bucket_span_ms(decay) for decay in settings.decay]
        self.arms = {name: number << 8 | index for index, name in enumerate(sorted(settings.variants))}
        self._categories = {name: place for place, name in enumerate(sorted(settings.categories))}
        self.starts_ms: i64 = settings.starts_at_ms if settings.starts_at_ms is not None else 0
        self._before_ms: i64 = self.starts_ms - (settings.pre_period_ms or 0)
        self.ends_ms: i64 = settings.ends_at_ms if settings.ends_at_ms is not None else 1 << 62

    def arm_of(self, variant: str, timestamp_ms: i64) -> int:
        """Return the arm of a response, `NO_RESPONSE` if its variant or its time does not count."""
        arm = self.arms.get(variant, NO_RESPONSE)
        if arm == NO_RESPONSE or self.starts_ms <= timestamp_ms < self.ends_ms:
            return arm
        return self.number << 8 | PRE_PERIOD if self._before_ms <= timestamp_ms < self.starts_ms else NO_RESPONSE

    def category_of(self, name: str | None) -> int:
        """Return a response's category as it stands in its row; see `monitor.engine.response_row`."""
        return MISSING if name is None else self._categories.get(name, len(self._categories))

    def segment_of(self, category: i64) -> i64:
        """Return what a student's row keeps of a first response's category: nothing unless categories are declared."""
        if self._categories:
            return category
        return MISSING

    def tally(self) -> Accumulator:
        """Return sums of nothing."""
        return Accumulator(self.layout, self._spans_ms)

    def tally_in(self, tallies: dict[int, Accumulator]) -> Accumulator:
        """Return the experiment's among sums by number, which it joins with nothing if there is none."""
        known = tallies.get(self.number)
        if known is None:
            known = tallies[self.number] = self.tally()
        return known

    def items(self, identities: IdHasher, keys: Keys) -> ItemCounts | None:
        """Return what counts items, None where they are not counted."""
        if not self.counts_items:
            return None
        return ItemCounts(self.number, self.settings, self.rules, identities, keys)

    def traffic(self) -> TrafficAccumulator:
        """Return sums of nothing."""
        return TrafficAccumulator(len(self._categories))
