"""An experiment as the processor needs it."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from monitor.config import ExperimentSettings
from monitor.engine.accumulator import Accumulator, TrafficAccumulator
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import IdHasher
from monitor.engine.item_counts import ItemCounts, ItemKeys
from monitor.engine.response_row import MISSING, NO_RESPONSE, PRE_PERIOD
from monitor.metrics import Layout, bucket_span_ms

_ALWAYS_MS: Final = 1 << 62


@final
class Experiment:
    """One experiment: its number in the store, its compiled rules, its arms."""

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
        """Variant → arm; see `ResponseRow.arm`."""
        self._categories = {name: index for index, name in enumerate(sorted(settings.categories))}
        self.starts_ms: i64 = settings.starts_at_ms if settings.starts_at_ms is not None else 0
        self._before_ms: i64 = self.starts_ms - (settings.pre_period_ms or 0)
        self.ends_ms: i64 = settings.ends_at_ms if settings.ends_at_ms is not None else _ALWAYS_MS

    def arm_of(self, variant: str, timestamp_ms: i64) -> int:
        """Return the arm of a response, `NO_RESPONSE` if its variant or its time does not count."""
        arm = self.arms.get(variant, NO_RESPONSE)
        if arm == NO_RESPONSE or self.starts_ms <= timestamp_ms < self.ends_ms:
            return arm
        return self.number << 8 | PRE_PERIOD if self._before_ms <= timestamp_ms < self.starts_ms else NO_RESPONSE

    def category_of(self, name: str | None) -> int:
        """Return the category of a response as its row stores it: see `ResponseRow.category`."""
        return MISSING if name is None else self._categories.get(name, len(self._categories))

    def segment_of(self, category: i64) -> i64:
        """Return the category of a first response as a student's row stores it: `MISSING` unless some are declared."""
        if self._categories:
            return category
        return MISSING

    def accumulator(self) -> Accumulator:
        """Return an empty accumulator of the sums over responses and students."""
        return Accumulator(self.layout, self._spans_ms)

    def traffic_accumulator(self) -> TrafficAccumulator:
        """Return an empty accumulator of the traffic."""
        return TrafficAccumulator(len(self._categories))

    def item_counts(self, ids: IdHasher, keys: ItemKeys) -> ItemCounts | None:
        """Return the counts that rows add to items, None if the experiment does not count items."""
        if not self.counts_items:
            return None
        return ItemCounts(self.number, self.settings, self.rules, ids, keys)
