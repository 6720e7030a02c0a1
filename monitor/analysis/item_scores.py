"""What an item's ratings are worth: bounds that one lucky rating does not reach.

An item with a single 5 has a better mean than one with a hundred ratings of which two are a 4. So items are ordered by
a lower bound of what they are worth: of the share of good ratings (Wilson), or of the mean (a normal approximation
behind a prior of one rating of each grade). With more ratings the bound comes nearer to the mean. An item that nobody
rated has no score: it is None, not 0, which would be below every item that people complained about.

Everything here is a function of four sums over an item's ratings, so it does not depend on their order.

References: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22(158), 1927. Brown,
Cai & DasGupta, "Interval estimation for a binomial proportion", Statistical Science 16(2), 2001 (why not Wald's).
Miller, "How not to sort by average rating", 2009, and "Ranking items with star ratings", 2014 (evanmiller.org).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

Counts: TypeAlias = Mapping[float, int]
"""Grade → how many ratings."""

_CONFIDENCE: Final = 0.95
_FEWEST_GRADES: Final = 2


@dataclass(frozen=True, slots=True)
class ItemScore:
    """An item's ratings in numbers; None where there are none."""

    ratings: int
    mean: float | None
    good_share: float | None
    good_lower: float | None
    """Wilson's bound of the share of good ratings."""
    mean_lower: float | None
    """The bound of the mean grade, behind the prior."""

    @classmethod
    def of(
        cls, counts: Counts, *, relevant_grade: float, grades: Sequence[float], confidence: float = _CONFIDENCE
    ) -> ItemScore:
        """Return the scores; a rating of at least `relevant_grade` is good, `grades` are those of the prior."""
        ratings = _ratings(counts)
        good = sum(count for grade, count in counts.items() if grade >= relevant_grade)
        total, squares = _sums(counts)
        return cls.of_sums(ratings, good, total, squares, grades, confidence)

    @classmethod
    def of_sums(
        cls,
        ratings: int,
        good: int,
        total: float,
        squares: float,
        grades: Sequence[float],
        confidence: float = _CONFIDENCE,
    ) -> ItemScore:
        """Return the same from the number of ratings and of good ones, Σ grade and Σ grade².

        By hand, as in `star_lower`: a single 5 has Σ grade = 5, Σ grade² = 25.

        >>> round(ItemScore.of_sums(1, 1, 5.0, 25.0, range(1, 6)).mean_lower, 4)
        2.229
        """
        return cls(
            ratings=ratings,
            mean=total / ratings if ratings else None,
            good_share=good / ratings if ratings else None,
            good_lower=wilson_lower(good, ratings, confidence),
            mean_lower=_star_lower(ratings, total, squares, grades, confidence) if ratings else None,
        )


def mean_grade(counts: Counts) -> float | None:
    """Return the mean grade, or None without ratings.

    >>> mean_grade({1: 10, 4: 20}), mean_grade({})
    (3.0, None)
    """
    ratings = _ratings(counts)
    return math.fsum(grade * count for grade, count in counts.items()) / ratings if ratings else None


def wilson_lower(good: int, ratings: int, confidence: float = _CONFIDENCE) -> float | None:
    """Return the lower end of Wilson's two-sided interval of the share of good ratings; None without ratings.

    (p + z²/2n − z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n), Wilson 1927: the smallest share under which as many good ones
    are not yet surprising. From 0 (no good one) to below 1. ValueError: a negative count, more good ones than ratings,
    a confidence outside (0, 1).

    By hand: one good rating of one gives 1/(1 + z²) = 1/(1 + 3.8415).

    >>> round(wilson_lower(1, 1), 4), wilson_lower(0, 35), wilson_lower(0, 0)
    (0.2065, 0.0, None)
    >>> wilson_lower(209, 259) < wilson_lower(118, 143)
    True
    """
    if not 0 <= good <= ratings:
        raise ValueError(f"{good} good ratings of {ratings}, expected counts of at least 0, and not more good than all")
    z = _quantile(confidence)
    if not ratings:
        return None
    if not good:
        return 0.0
    share, doubt = good / ratings, z * z / ratings
    spread = z * math.sqrt(share * (1 - share) / ratings + doubt / ratings / 4)
    return (share + doubt / 2 - spread) / (1 + doubt)


def star_lower(counts: Counts, grades: Sequence[float], confidence: float = _CONFIDENCE) -> float | None:
    """Return the lower bound of an item's mean grade, behind one rating of each of `grades`; None without ratings.

    M − z·√((Q − M²)/(N + K + 1)) with N ratings, K grades of the prior, and M and Q the mean grade and the mean squared
    grade of both together: mean and variance of the mean under a Dirichlet posterior, normally approximated (Miller
    2014). Ratings may lie between the grades of the prior. ValueError: a count below 0, a grade that is not finite,
    fewer than two different grades, a confidence outside (0, 1).

    By hand: a single 5 on five stars has M = 20/6 = 3.3333, Q = 80/6, and 3.3333 − 1.96·√(2.2222/7) = 2.2290.

    >>> round(star_lower({5: 1}, range(1, 6)), 4), star_lower({}, range(1, 6))
    (2.229, None)
    """
    if len(set(grades)) < max(_FEWEST_GRADES, len(grades)):
        raise ValueError(f"grades are {list(grades)}, expected at least {_FEWEST_GRADES} different ones")
    _finite(grades)
    ratings = _ratings(counts)
    return _star_lower(ratings, *_sums(counts), grades, confidence) if ratings else None


def _star_lower(ratings: int, total: float, squares: float, grades: Sequence[float], confidence: float) -> float:
    """Return `star_lower` from Σ grade and Σ grade² of the ratings."""
    everything = ratings + len(grades)
    mean = (total + math.fsum(grades)) / everything
    variance = (squares + math.fsum(grade * grade for grade in grades)) / everything - mean * mean
    return mean - _quantile(confidence) * math.sqrt(max(variance, 0.0) / (everything + 1))


def _sums(counts: Counts) -> tuple[float, float]:
    """Return Σ grade and Σ grade² of the ratings."""
    powers = (1, 2)
    total, squares = (math.fsum(grade**power * count for grade, count in counts.items()) for power in powers)
    return total, squares


def _ratings(counts: Counts) -> int:
    _finite(counts)
    for grade, count in counts.items():
        if count < 0:
            raise ValueError(f"{count} ratings of {grade:g}, expected at least 0")
    return sum(counts.values())


def _finite(grades: Iterable[float]) -> None:
    for grade in grades:
        if not math.isfinite(grade):
            raise ValueError(f"a grade is {grade!r}, expected a finite number")


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a level between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
