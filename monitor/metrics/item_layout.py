"""The layout of item counts: slices of time, buckets of items, and fixed-point grades."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from monitor.config import ExperimentSettings
from monitor.days import DayCalendar

SHOWN_FIELD: Final = b"s"
RATINGS_FIELD: Final = b"n"
GOOD_RATINGS_FIELD: Final = b"g"
GRADE_TOTAL_FIELD: Final = b"t"
GRADE_SQUARES_FIELD: Final = b"q"
BAD_ANSWERS_FIELD: Final = b"b"
"""Suffixes of field names behind an item's hash: times shown, ratings, good ratings, Σ grade, Σ grade², bad answers."""

BAD_ANSWER_DAYS: Final = 10
"""Days before today whose bad answers count in an item's review priority (`monitor.analysis.triage`)."""

_MAX_SLICES: Final = 10
"""Largest number of slices of a horizon; a slice has a whole number of days."""
_ITEMS_PER_BUCKET: Final = 16
_MAX_GRADE_BITS: Final = 34
"""Bits of the largest grade and of its square: sums of 5·10⁸ ratings of an item in a slice fit 64 bits."""

_SETTLED_SCORE: Final = 1.0
_RAISED_SCORE: Final = 2.0
_MAX_BAD_ANSWERS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """The layout of an experiment's item counts."""

    days_per_slice: int
    slice_count: int
    """Slices of the horizon."""
    bucket_count: int
    """Buckets of items; the item's hash selects the bucket."""
    grade_bits: int
    """Fraction bits of a grade."""
    square_bits: int
    """Fraction bits of a squared grade."""
    calendar: DayCalendar
    """The days of the experiment."""

    @classmethod
    def for_experiment(cls, settings: ExperimentSettings) -> ItemLayout:
        """Return the layout of an experiment with counted items."""
        assert settings.items is not None
        days_per_slice = -(-settings.items.horizon_days // _MAX_SLICES)
        integer_bits = max(math.ceil(math.log2(max(settings.max_grade, 1.0))), 0)
        return cls(
            days_per_slice=days_per_slice,
            slice_count=-(-settings.items.horizon_days // days_per_slice),
            bucket_count=-(-settings.items.expected_items // _ITEMS_PER_BUCKET),
            grade_bits=_MAX_GRADE_BITS - integer_bits,
            square_bits=_MAX_GRADE_BITS - 2 * integer_bits,
            calendar=settings.calendar,
        )

    def slice_of(self, timestamp_ms: int) -> int:
        """Return the number of the slice of a time."""
        return self.slice_of_day(self.calendar.day_number(timestamp_ms))

    def slice_of_day(self, day: int) -> int:
        """Return the number of the slice of a day."""
        return day // self.days_per_slice

    def slice_start_ms(self, slice_number: int) -> int:
        """Return the time at which a slice begins."""
        return self.calendar.start_ms(slice_number * self.days_per_slice)

    def oldest_slice(self, newest_ms: int) -> int:
        """Return the number of the first slice of the horizon that ends at `newest_ms`."""
        return self.slice_of(newest_ms) - self.slice_count + 1

    def era_of(self, slice_number: int) -> int:
        """Return the number of a slice's era, a period as long as the horizon; item names are stored by era."""
        return slice_number // self.slice_count

    def bucket_of(self, item: bytes) -> int:
        """Return the number of the bucket of an item's hash."""
        return int.from_bytes(item[:4]) % self.bucket_count

    def fixed_point_grade(self, grade: float) -> int:
        """Return a grade in fixed point."""
        return round(grade * 2.0**self.grade_bits)

    def fixed_point_square(self, grade: float) -> int:
        """Return the square of a grade in fixed point."""
        return round(grade * grade * 2.0**self.square_bits)


def bad_answer_count(review: float | None) -> int:
    """Return the weight of a bad answer in counts of bad answers, given the score of the latest review.

    The weight is 1 without a review and for a score below 1, which withdraws an earlier review; 0 for scores from
    1 to below 2; and the integer part of the score, at most 10⁶, from 2 on. A review without a score has score 1.
    ValueError: a score that is negative or not finite.

    >>> [bad_answer_count(review) for review in (None, 1, 0, 5)]
    [1, 0, 1, 5]
    """
    if review is None:
        return 1
    if not 0 <= review < math.inf:
        raise ValueError(f"the score of a review is {review!r}, expected a finite number of at least 0")
    if review < _SETTLED_SCORE:
        return 1
    return 0 if review < _RAISED_SCORE else min(int(review), _MAX_BAD_ANSWERS)
