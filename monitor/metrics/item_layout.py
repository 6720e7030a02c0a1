"""How the counts of items are laid out: slices of time, buckets of items, whole numbers for grades."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from monitor.clock import DAY_MS
from monitor.config import ExperimentSettings

SHOWN, RATINGS, GOOD, TOTAL, SQUARES, BAD = b"s", b"n", b"g", b"t", b"q", b"b"
"""What stands behind an item's hash in the name of a field: how often shown, ratings, good ones, Σ grade, Σ grade²."""

BAD_DAYS: Final = 10
"""Days before today of which bad answers are looked at (`monitor.analysis.triage.RECIPROCAL`)."""

_SLICES: Final = 10
"""A horizon is cut into at most so many slices of whole days."""
_ITEMS_PER_BUCKET: Final = 16
_BITS: Final = 34
"""Bits of the largest grade, and of its square: 5·10⁸ ratings of an item in a slice fit 64 bits."""

_SETTLED: Final = 1.0
_RAISED: Final = 2.0
_MAX_ANSWERS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """One experiment's layout."""

    days: int
    """Of a slice."""
    slices: int
    """That make the horizon."""
    buckets: int
    grade_bits: int
    """Fraction bits kept of a grade."""
    square_bits: int

    @classmethod
    def of(cls, settings: ExperimentSettings) -> ItemLayout:
        assert settings.items is not None
        days = -(-settings.items.days // _SLICES)
        whole = max(math.ceil(math.log2(max(settings.max_grade, 1.0))), 0)
        return cls(
            days=days,
            slices=-(-settings.items.days // days),
            buckets=-(-settings.items.expected_items // _ITEMS_PER_BUCKET),
            grade_bits=_BITS - whole,
            square_bits=_BITS - 2 * whole,
        )

    def slice_of(self, at_ms: int) -> int:
        return at_ms // (self.days * DAY_MS)

    def oldest(self, newest_ms: int) -> int:
        """Return the first slice of the horizon that ends with a time."""
        return self.slice_of(newest_ms) - self.slices + 1

    def era_of(self, piece: int) -> int:
        """Return the stretch of time, as long as the horizon, whose names a slice uses."""
        return piece // self.slices

    def bucket(self, item: bytes) -> int:
        return int.from_bytes(item[:4]) % self.buckets

    def grade(self, grade: float) -> int:
        return round(grade * 2.0**self.grade_bits)

    def square(self, grade: float) -> int:
        return round(grade * grade * 2.0**self.square_bits)


def bad_answer_count(review: float | None) -> int:
    """Return as how many bad answers one counts: 1; 0 once reviewed; the score's whole part from 2 on, at most 10⁶.

    A `reviewed` without a score has score 1. A score below 1 takes an earlier review back. ValueError: a score that is
    negative or not finite.

    >>> [bad_answer_count(review) for review in (None, 1, 0, 5)]
    [1, 0, 1, 5]
    """
    if review is None:
        return 1
    if not 0 <= review < math.inf:
        raise ValueError(f"the score of a review is {review!r}, expected a finite number of at least 0")
    if review < _SETTLED:
        return 1
    return 0 if review < _RAISED else min(int(review), _MAX_ANSWERS)
