"""Scores of rated items: lower bounds of the share of good ratings and of the mean grade.

An item with a single rating of 5 has a better mean than an item with a hundred ratings of which two are a 4. Items are
therefore ordered by a lower bound: of the share of good ratings (Wilson), or of the mean grade (a normal approximation
with a prior of one rating of each grade). With more ratings a bound comes nearer to the share or the mean. The score of
an unrated item is None; a score of 0 would rank the item below all items with bad ratings.

Every score is a function of four sums over an item's ratings, so it does not depend on the order of the ratings.

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

GradeCounts: TypeAlias = Mapping[float, int]
"""Grade → number of ratings."""

_DEFAULT_CONFIDENCE: Final = 0.95
_MIN_GRADES: Final = 2


@dataclass(frozen=True, slots=True)
class ItemScore:
    """Means and lower bounds of an item's ratings; all but `ratings` are None for an unrated item.

    The names of the fields are JSON keys.
    """

    ratings: int
    mean: float | None
    good_share: float | None
    good_lower: float | None
    """Wilson's lower bound of the share of good ratings."""
    mean_lower: float | None
    """Lower bound of the mean grade, with the prior."""

    @classmethod
    def of(
        cls,
        counts: GradeCounts,
        *,
        relevant_grade: float,
        prior_grades: Sequence[float],
        confidence: float = _DEFAULT_CONFIDENCE,
    ) -> ItemScore:
        """Return the score of ratings counted by grade; a rating of at least `relevant_grade` is good.

        The prior is one rating of each of `prior_grades`.
        """
        good_rating_count = sum(count for grade, count in counts.items() if grade >= relevant_grade)
        return cls.of_sums(_count_ratings(counts), good_rating_count, *_grade_sums(counts), prior_grades, confidence)

    @classmethod
    def of_sums(
        cls,
        rating_count: int,
        good_rating_count: int,
        grade_sum: float,
        grade_square_sum: float,
        prior_grades: Sequence[float],
        confidence: float = _DEFAULT_CONFIDENCE,
    ) -> ItemScore:
        """Return the score from the number of ratings, the number of good ratings, Σ grade and Σ grade².

        By hand, as in `mean_grade_lower_bound`: a single 5 has Σ grade = 5, Σ grade² = 25.

        >>> round(ItemScore.of_sums(1, 1, 5.0, 25.0, range(1, 6)).mean_lower, 4)
        2.229
        """
        mean_lower = None
        if rating_count:
            mean_lower = _lower_bound_from_sums(rating_count, grade_sum, grade_square_sum, prior_grades, confidence)
        return cls(
            ratings=rating_count,
            mean=grade_sum / rating_count if rating_count else None,
            good_share=good_rating_count / rating_count if rating_count else None,
            good_lower=wilson_lower_bound(good_rating_count, rating_count, confidence),
            mean_lower=mean_lower,
        )


def mean_grade(counts: GradeCounts) -> float | None:
    """Return the mean grade; None without ratings.

    >>> mean_grade({1: 10, 4: 20}), mean_grade({})
    (3.0, None)
    """
    rating_count = _count_ratings(counts)
    return math.fsum(grade * count for grade, count in counts.items()) / rating_count if rating_count else None


def wilson_lower_bound(
    good_rating_count: int, rating_count: int, confidence: float = _DEFAULT_CONFIDENCE
) -> float | None:
    """Return the lower end of Wilson's two-sided interval of the share of good ratings; None without ratings.

    (p + z²/2n − z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n) with p the share of good ratings of n, Wilson 1927: the smallest
    share under which so many good ratings are not yet improbable. In [0, 1); 0 without good ratings. ValueError: a
    negative count, more good ratings than ratings, a confidence outside (0, 1).

    By hand: one good rating of one gives 1/(1 + z²) = 1/(1 + 3.8415).

    >>> round(wilson_lower_bound(1, 1), 4), wilson_lower_bound(0, 35), wilson_lower_bound(0, 0)
    (0.2065, 0.0, None)
    >>> wilson_lower_bound(209, 259) < wilson_lower_bound(118, 143)
    True
    """
    if not 0 <= good_rating_count <= rating_count:
        raise ValueError(
            f"{good_rating_count} good ratings of {rating_count}, expected at least 0 and at most as many as ratings"
        )
    z = _quantile(confidence)
    if not rating_count:
        return None
    if not good_rating_count:
        return 0.0
    share, z_square_per_rating = good_rating_count / rating_count, z * z / rating_count
    half_width = z * math.sqrt(share * (1 - share) / rating_count + z_square_per_rating / rating_count / 4)
    return (share + z_square_per_rating / 2 - half_width) / (1 + z_square_per_rating)


def mean_grade_lower_bound(
    counts: GradeCounts, prior_grades: Sequence[float], confidence: float = _DEFAULT_CONFIDENCE
) -> float | None:
    """Return the lower bound of an item's mean grade, with a prior of 1 rating per prior grade; None if unrated.

    M − z·√((Q − M²)/(N + K + 1)) with N ratings and K prior grades. M and Q are the mean and the mean square of all N +
    K grades. The bound uses the mean and variance of the mean grade under a Dirichlet posterior, and a normal
    approximation (Miller 2014). Ratings may lie between prior grades. ValueError: a count below 0, a grade that is not
    finite, fewer than two different prior grades, a confidence outside (0, 1).

    By hand: a single 5 on five stars has M = 20/6 = 3.3333, Q = 80/6, and 3.3333 − 1.96·√(2.2222/7) = 2.2290.

    >>> round(mean_grade_lower_bound({5: 1}, range(1, 6)), 4), mean_grade_lower_bound({}, range(1, 6))
    (2.229, None)
    """
    if len(set(prior_grades)) < max(_MIN_GRADES, len(prior_grades)):
        raise ValueError(f"grades are {list(prior_grades)}, expected at least {_MIN_GRADES} different ones")
    _check_finite(prior_grades)
    rating_count = _count_ratings(counts)
    if not rating_count:
        return None
    return _lower_bound_from_sums(rating_count, *_grade_sums(counts), prior_grades, confidence)


def _lower_bound_from_sums(
    rating_count: int, grade_sum: float, grade_square_sum: float, prior_grades: Sequence[float], confidence: float
) -> float:
    """Return `mean_grade_lower_bound` from Σ grade and Σ grade² of the ratings."""
    total_count = rating_count + len(prior_grades)
    mean = (grade_sum + math.fsum(prior_grades)) / total_count
    mean_square = (grade_square_sum + math.fsum(grade * grade for grade in prior_grades)) / total_count
    variance = mean_square - mean * mean
    return mean - _quantile(confidence) * math.sqrt(max(variance, 0.0) / (total_count + 1))


def _grade_sums(counts: GradeCounts) -> tuple[float, float]:
    """Return Σ grade and Σ grade² of the ratings."""
    powers = (1, 2)
    grade_sum, grade_square_sum = (
        math.fsum(grade**power * count for grade, count in counts.items()) for power in powers
    )
    return grade_sum, grade_square_sum


def _count_ratings(counts: GradeCounts) -> int:
    """Return the number of ratings. ValueError: a count below 0, a grade that is not finite."""
    _check_finite(counts)
    for grade, count in counts.items():
        if count < 0:
            raise ValueError(f"{count} ratings of {grade:g}, expected at least 0")
    return sum(counts.values())


def _check_finite(grades: Iterable[float]) -> None:
    for grade in grades:
        if not math.isfinite(grade):
            raise ValueError(f"a grade is {grade!r}, expected a finite number")


def _quantile(confidence: float) -> float:
    """Return the standard normal quantile of a two-sided interval at a confidence level."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a level between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
