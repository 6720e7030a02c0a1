"""Stored sums of an experiment's items, the scores of rated items, and catalogue coverage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from monitor.analysis.item_scores import ItemScore
from monitor.analysis.shown_items import top_k
from monitor.metrics import (
    GOOD_RATINGS_FIELD,
    GRADE_SQUARES_FIELD,
    GRADE_TOTAL_FIELD,
    RATINGS_FIELD,
    SHOWN_FIELD,
    ItemLayout,
)


@dataclass(frozen=True, slots=True)
class ItemSums:
    """The sums of an item over the responses of a variant, or of several variants."""

    shown_count: int = 0
    """Responses that showed the item."""
    rating_count: int = 0
    good_rating_count: int = 0
    """Ratings of at least the experiment's `relevant_grade`."""
    grade_sum: float = 0.0
    """Σ grade"""
    grade_square_sum: float = 0.0
    """Σ grade²"""

    @classmethod
    def of(cls, counts: Mapping[bytes, int], layout: ItemLayout) -> ItemSums:
        """Return the sums from stored integers by field suffix (`monitor.metrics.item_layout`)."""
        return cls(
            counts.get(SHOWN_FIELD, 0),
            counts.get(RATINGS_FIELD, 0),
            counts.get(GOOD_RATINGS_FIELD, 0),
            counts.get(GRADE_TOTAL_FIELD, 0) / 2.0**layout.grade_bits,
            counts.get(GRADE_SQUARES_FIELD, 0) / 2.0**layout.square_bits,
        )

    def __add__(self, other: ItemSums) -> ItemSums:
        return ItemSums(
            self.shown_count + other.shown_count,
            self.rating_count + other.rating_count,
            self.good_rating_count + other.good_rating_count,
            self.grade_sum + other.grade_sum,
            self.grade_square_sum + other.grade_square_sum,
        )

    def score(self, prior_grades: Sequence[float]) -> ItemScore:
        """Return the score of the ratings, with a prior of 1 rating of each of `prior_grades`."""
        return ItemScore.of_sums(
            self.rating_count, self.good_rating_count, self.grade_sum, self.grade_square_sum, prior_grades
        )


@dataclass(frozen=True, slots=True)
class ItemCoverage:
    """The number of distinct items that a variant has shown within the horizon."""

    since_ms: int
    """Start of the horizon."""
    items: int
    """Distinct items, without the items that are counted together under one name."""
    share: float | None
    """Share of the catalogue; None without a catalogue, or if only a sample of the items is counted."""


@dataclass(frozen=True, slots=True)
class StoredItems:
    """The items of an experiment within the horizon that ends with the experiment's newest response."""

    since_ms: int | None
    """Start of the horizon; None before the first response."""
    by_variant: Mapping[str, Mapping[str, ItemSums]]
    """Variant → item → sums."""
    catalogue: Collection[str]
    """All item ids; empty without a catalogue, or if only a sample of the items is counted."""
    prior_grades: Sequence[float]
    """Grades of the prior of each score, one rating each."""

    def sums_over_variants(self) -> dict[str, ItemSums]:
        """Return item → sums over all variants."""
        totals: dict[str, ItemSums] = {}
        for sums_by_item in self.by_variant.values():
            for item, sums in sums_by_item.items():
                totals[item] = totals.get(item, ItemSums()) + sums
        return totals

    def worst_items(self, n: int) -> list[tuple[str, ItemSums, ItemScore]]:
        """Return the n rated items with the smallest lower bounds of the mean grade, smallest first, equals by id."""
        rated_items = [
            (item, sums, sums.score(self.prior_grades))
            for item, sums in self.sums_over_variants().items()
            if sums.rating_count
        ]
        return sorted(rated_items, key=lambda rated: (rated[2].mean_lower or 0.0, rated[0]))[:n]

    def count_unrated(self) -> int:
        """Return the number of shown items without a rating; an unrated item has no score, not a score of 0."""
        return sum(sums.shown_count > 0 and not sums.rating_count for sums in self.sums_over_variants().values())

    def to_json(self, n: int) -> dict[str, object]:
        """Return the JSON object of the n worst items, and of the n items that each variant shows most often."""
        return {
            "variants": {name: self._variant_json(sums_by_item, n) for name, sums_by_item in self.by_variant.items()},
            "worst": [
                {
                    "item": item,
                    "shown": sums.shown_count,
                    **asdict(score),
                    "by_variant": {
                        name: {
                            "shown": sums_by_item[item].shown_count,
                            **asdict(sums_by_item[item].score(self.prior_grades)),
                        }
                        for name, sums_by_item in self.by_variant.items()
                        if item in sums_by_item
                    },
                }
                for item, sums, score in self.worst_items(n)
            ],
            "unrated": self.count_unrated(),
        }

    def _variant_json(self, sums_by_item: Mapping[str, ItemSums], n: int) -> dict[str, object]:
        shown_counts = {item: sums.shown_count for item, sums in sums_by_item.items() if sums.shown_count}
        catalogue_size = len(self.catalogue)
        # Items outside the catalogue are counted together under one name, which is no item of the catalogue.
        item_count = sum(item in self.catalogue for item in shown_counts) if catalogue_size else len(shown_counts)
        return {
            "items": item_count,
            "coverage": item_count / catalogue_size if catalogue_size else None,
            "most_shown": top_k(shown_counts, n).to_json(),
        }
