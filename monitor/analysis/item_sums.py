"""An experiment's items from stored sums: what they are worth, what is shown, what to look at first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from monitor.analysis.item_scores import ItemScore
from monitor.analysis.top_items import leaders
from monitor.metrics import GOOD, RATINGS, SHOWN, SQUARES, TOTAL, ItemLayout


@dataclass(frozen=True, slots=True)
class Sums:
    """What is counted of one item."""

    shown: int = 0
    ratings: int = 0
    good: int = 0
    total: float = 0.0
    """Σ grade"""
    squares: float = 0.0
    """Σ grade²"""

    @classmethod
    def of(cls, counts: Mapping[bytes, int], layout: ItemLayout) -> Sums:
        return cls(
            counts.get(SHOWN, 0),
            counts.get(RATINGS, 0),
            counts.get(GOOD, 0),
            counts.get(TOTAL, 0) / 2.0**layout.grade_bits,
            counts.get(SQUARES, 0) / 2.0**layout.square_bits,
        )

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.shown + other.shown,
            self.ratings + other.ratings,
            self.good + other.good,
            self.total + other.total,
            self.squares + other.squares,
        )

    def score(self, grades: Sequence[float]) -> ItemScore:
        """Return what the ratings are worth, behind one rating of each of `grades`."""
        return ItemScore.of_sums(self.ratings, self.good, self.total, self.squares, grades)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many different items one variant has shown."""

    since_ms: int
    """The horizon begins there."""
    items: int
    """Different ones, of those that are counted by themselves."""
    share: float | None
    """Of the catalogue; None without one, or where not all items are counted."""


@dataclass(frozen=True, slots=True)
class StoredItems:
    """One experiment's items within the horizon that ends with its newest response."""

    since_ms: int | None
    """None before the first response."""
    by_variant: Mapping[str, Mapping[str, Sums]]
    catalogue: Collection[str]
    grades: Sequence[float]

    def everything(self) -> dict[str, Sums]:
        found: dict[str, Sums] = {}
        for own in self.by_variant.values():
            for item, sums in own.items():
                found[item] = found.get(item, Sums()) + sums
        return found

    def worst(self, n: int) -> list[tuple[str, Sums, ItemScore]]:
        """Return the n rated items with the lowest bound of the mean grade; unrated items are not among them."""
        rated = [(item, sums, sums.score(self.grades)) for item, sums in self.everything().items() if sums.ratings]
        return sorted(rated, key=lambda each: (each[2].mean_lower or 0.0, each[0]))[:n]

    def unrated(self) -> int:
        """Return how many items were shown and not rated: they have no score, which is not a score of 0."""
        return sum(sums.shown > 0 and not sums.ratings for sums in self.everything().values())

    def to_json(self, n: int) -> dict[str, object]:
        """Return the n worst items, and what each variant shows, as one JSON object."""
        return {
            "variants": {name: self._variant_json(own, n) for name, own in self.by_variant.items()},
            "worst": [
                {
                    "item": item,
                    "shown": sums.shown,
                    **asdict(score),
                    "by_variant": {
                        name: {"shown": own[item].shown, **asdict(own[item].score(self.grades))}
                        for name, own in self.by_variant.items()
                        if item in own
                    },
                }
                for item, sums, score in self.worst(n)
            ],
            "unrated": self.unrated(),
        }

    def _variant_json(self, own: Mapping[str, Sums], n: int) -> dict[str, object]:
        shown = {item: sums.shown for item, sums in own.items() if sums.shown}
        known = len(self.catalogue)
        # What is not in a catalogue is counted together, under one name.
        items = sum(item in self.catalogue for item in shown) if known else len(shown)
        return {
            "items": items,
            "coverage": items / known if known else None,
            "most_shown": asdict(leaders(shown, n)),
        }
