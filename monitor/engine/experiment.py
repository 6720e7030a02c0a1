"""The experiment of the settings, prepared for the batch processor."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from monitor.config import ExperimentSettings
from monitor.engine.accumulator import MetricAccumulator, TrafficAccumulator
from monitor.engine.exclusion_rules import ExclusionRules
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import IdHasher
from monitor.engine.item_counts import ItemCounter, ItemKeys
from monitor.engine.local_days import LocalDays
from monitor.engine.response_row import EXCLUDED_VARIANT_OFFSET, MISSING, NO_RESPONSE, PRE_PERIOD_VARIANT
from monitor.metrics import RecordLayout, chunk_length_ms

_NO_END_MS: Final = 1 << 62


@final
class Experiment:
    """An experiment with the number in the store, grading rules, record layout and variant keys."""

    __slots__ = (
        "_categories",
        "_chunk_lengths_ms",
        "_pre_period_starts_at_ms",
        "counts_items",
        "days",
        "ends_at_ms",
        "excluded_variants",
        "exclusion_rules",
        "layout",
        "number",
        "rules",
        "settings",
        "starts_at_ms",
        "sums_width",
        "tracked_days",
        "unit_field",
        "uses_sessions",
        "variant_keys",
    )

    def __init__(self, number: int, settings: ExperimentSettings) -> None:
        self.number = number
        self.settings = settings
        self.days = LocalDays(settings.calendar)
        self.counts_items = settings.items is not None
        self.unit_field = settings.unit_field
        self.rules = GradingRules(settings)
        self.layout = RecordLayout.for_experiment(settings)
        self.sums_width = self.layout.sums_width
        self.tracked_days = self.layout.tracked_days
        self.uses_sessions = settings.uses_sessions
        self._chunk_lengths_ms = [chunk_length_ms(decay) for decay in settings.decay]
        self.variant_keys = {name: number << 8 | index for index, name in enumerate(sorted(settings.variants))}
        """Name of a variant → variant key: see `ResponseRow.variant_key`."""
        self.exclusion_rules = ExclusionRules(settings.exclude)
        variant_count = len(self.variant_keys)
        self.excluded_variants = (
            range(EXCLUDED_VARIANT_OFFSET, EXCLUDED_VARIANT_OFFSET + variant_count)
            if variant_count < EXCLUDED_VARIANT_OFFSET
            else range(0)
        )
        """The variants of excluded responses; none if the experiment has too many variants for excluded responses."""
        self._categories = {name: index for index, name in enumerate(sorted(settings.categories))}
        self.starts_at_ms: i64 = settings.starts_at_ms if settings.starts_at_ms is not None else 0
        self._pre_period_starts_at_ms: i64 = self.starts_at_ms - (settings.pre_period_ms or 0)
        self.ends_at_ms: i64 = settings.ends_at_ms if settings.ends_at_ms is not None else _NO_END_MS

    def find_variant_key(self, variant: str, timestamp_ms: i64) -> int:
        """Return the variant key of a response; `NO_RESPONSE` if the response does not count.

        A response counts if its variant is declared and its time is within the experiment or the pre-period.
        """
        variant_key = self.variant_keys.get(variant, NO_RESPONSE)
        if variant_key == NO_RESPONSE or self.starts_at_ms <= timestamp_ms < self.ends_at_ms:
            return variant_key
        return (
            self.number << 8 | PRE_PERIOD_VARIANT
            if self._pre_period_starts_at_ms <= timestamp_ms < self.starts_at_ms
            else NO_RESPONSE
        )

    def excluded_variant_key(self, variant_key: int) -> int:
        """Return the variant key of an excluded response; `NO_RESPONSE` for a response in the pre-period.

        `variant_key` is the key of the same response without exclusion.
        """
        excluded_key = variant_key + EXCLUDED_VARIANT_OFFSET
        is_counted = variant_key & 255 != PRE_PERIOD_VARIANT and excluded_key & 255 in self.excluded_variants
        return excluded_key if is_counted else NO_RESPONSE

    def category_index(self, name: str | None) -> int:
        """Return the index of a category, which the rows of responses store: see `ResponseRow.category`."""
        return MISSING if name is None else self._categories.get(name, len(self._categories))

    def stored_category(self, category: i64) -> i64:
        """Return the category that is stored as a student's first category; `MISSING` without declared categories.

        The index of the student's segment in `ExperimentSettings.segments` is the returned category − `MISSING`.
        """
        if self._categories:
            return category
        return MISSING

    def create_metric_accumulator(self) -> MetricAccumulator:
        """Return an empty accumulator of the sums over responses and students."""
        return MetricAccumulator(self.layout, self._chunk_lengths_ms, self.days)

    def create_traffic_accumulator(self) -> TrafficAccumulator:
        """Return an empty accumulator of the traffic."""
        return TrafficAccumulator(len(self._categories), self.days)

    def create_item_counter(self, ids: IdHasher, keys: ItemKeys) -> ItemCounter | None:
        """Return a counter of the experiment's items; None if the experiment does not count items."""
        if not self.counts_items:
            return None
        return ItemCounter(self.number, self.settings, self.rules, ids, keys)
