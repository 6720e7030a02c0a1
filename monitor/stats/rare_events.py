"""Variance corrections for small samples: the variance that is missing if few students had rare values.

**At an end of the scale.** Of 60 students with a success rate of 2 %, three in ten samples have no success at all. The
sample variance is then 0, and intervals from it exclude the truth at some time in up to a third of experiments with
uneven shares. So if fewer than 20 students differ from an end of the scale, the variance gets pseudo-observations, as
Agresti & Coull add for a proportion: z²/2 students who differ if no student does, fewer with each student who does, and
none from 20 on. z is the two-sided boundary in standard errors where the boundary is tightest, 3.04 at α = 5 %.

By hand: no success among n students, z²/2 = 4.6. The variance of the mean gets 4.6/n², so that the upper bound is at
least 3.04·√4.6/n = 6.5/n, and (1 − 6.5/n)ⁿ < 0.0015. For a single analysis the rule of three has 3/n (Hanley &
Lippman-Hand 1983).

**With uneven shares.** The smaller variant may lack the students who cause the variance of the larger variant. Both
parts of the variance of the difference are then too small. The floor of that variance is therefore half of the variance
that two variants with the larger variance per student would have. This floor has no effect with equal numbers of
students, or if neither variance exceeds twice the other.

**Far values.** One student in 200 with a value far from all others moves the mean, and a sample may have no such
student: a treatment with a few far values and slightly lower ordinary values seems worse although its mean is equal. At
most K = n·s²/D² students of a sample can have had a value at a distance D from the mean. So for both ends of the scale
the variance gets z²/4 pseudo-observations at that end, weighted by 1 − K/10. For time-outs it gets z²/2, weighted by
1 − K/20.

References: Agresti & Coull, "Approximate is better than 'exact' for interval estimation of binomial proportions",
Amer. Statist. 52(2), 1998. Hanley & Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249(13),
1983. Kish 1965 (the effective number, (Σy)²/Σy²). Howard et al. 2021 (the boundary).
"""

from __future__ import annotations

import math
from typing import Final

from monitor.stats.argument_checks import check_level
from monitor.stats.estimates import Estimate, shift_estimate

SUFFICIENT_RARE_STUDENTS: Final = 20
"""From this effective number of students who differ from an end of the scale, the sample variance is used unchanged."""
SUFFICIENT_FAR_STUDENTS: Final = 10
"""From this number of students who may have had a value at an end of the scale, nothing is added for far values."""
_FAR_VALUE_WEIGHT: Final = 0.5
"""Smaller than for time-outs: simulated false alarms stay below 3 %, and ordinary intervals are hardly wider."""
MIN_VARIANCE_FRACTION: Final = 0.5
"""The variance of a difference is at least this part of its value if both variants had the larger unit variance."""


def agresti_coull_pseudo_count(alpha: float) -> float:
    """Return z²/2, the number of pseudo-observations if no student differs from an end of the scale.

    z = u(v)/√v at the v for which ρ is tuned; see `monitor.stats.confidence_sequences.optimal_rho`.

    >>> round(agresti_coull_pseudo_count(0.05), 2), round(math.sqrt(2 * agresti_coull_pseudo_count(0.05)), 2)
    (4.61, 3.04)
    """
    log_term = -2 * math.log(check_level("alpha", alpha))
    information_over_rho = log_term + math.log1p(log_term)
    return (1 + 1 / information_over_rho) * (math.log1p(information_over_rho) + log_term) / 2


def rare_event_variance(control: Estimate, treatment: Estimate, max_value: float | None, alpha: float) -> float:
    """Return the variance to add to the variance of a difference for rare values; 0 if both samples are sufficient.

    Means and variances of both estimates must be defined. `max_value` is the largest value that a student can have (the
    smallest is 0), or None if values are unbounded. A variant without variation gets the unit variance of the other
    variant.

    By hand: of 50 students two have a success, so 18/20 of 4.6 students are added, each with 1/50².

    >>> from monitor.stats.estimates import SampleMeanStatistic
    >>> control = SampleMeanStatistic(60, 30.0, 30.0).estimate()
    >>> treatment = SampleMeanStatistic(50, 2.0, 2.0).estimate()
    >>> round(rare_event_variance(control, treatment, 1.0, 0.05) * 50**2, 2)
    4.15

    Of 400 students with 1 ± 2 and 100 with 1 ± 0.5, the variance is 4/400 + 0.25/100, and half of 4/400 + 4/100 is
    0.0125 more:

    >>> control, treatment = Estimate(400, 1.0, 4.0 / 400), Estimate(100, 1.0, 0.25 / 100)
    >>> round(rare_event_variance(control, treatment, None, 0.05), 6)
    0.0125
    """
    added_variance = _uneven_shares_variance(control, treatment)
    if max_value is not None:
        added_variance += sum(
            agresti_coull_pseudo_count(alpha) * _pseudo_observation_square(estimate, max_value) / estimate.units**2
            for estimate in (control, treatment)
        )
    return added_variance


def _uneven_shares_variance(control: Estimate, treatment: Estimate) -> float:
    """Return the floor of the variance of a difference minus the variance, at least 0; for strata, the weighted sum.

    The floor is half of the variance that two variants with the larger unit variance would have.
    """
    if control.strata:
        pairs = zip(control.strata, treatment.strata, strict=True)
        return sum(
            weight**2 * _uneven_shares_variance(control_estimate, treatment_estimate)
            for (weight, control_estimate), (_, treatment_estimate) in pairs
        )
    variance = (control.variance or 0.0) + (treatment.variance or 0.0)
    max_unit_variance = max(estimate.unit_variance or 0.0 for estimate in (control, treatment))
    equal_variance = max_unit_variance * sum(1 / estimate.units for estimate in (control, treatment))
    borrowed_variance = sum(
        (other_variant.unit_variance or 0.0) / constant_variant.units
        for constant_variant, other_variant in ((control, treatment), (treatment, control))
        if constant_variant.variance == 0
    )
    return max(borrowed_variance, MIN_VARIANCE_FRACTION * equal_variance - variance, 0.0)


def small_sample_variance(
    control: Estimate, treatment: Estimate, max_value: float | None, alpha: float, min_value: float = 0.0
) -> float:
    """Return the variance to add to the variance of a difference: for rare values, or for far values if that is more.

    Arguments are those of `rare_event_variance`; `min_value` is the smallest value that a student can have.
    """
    if min_value:
        control, treatment = shift_estimate(control, -min_value), shift_estimate(treatment, -min_value)
        max_value = None if max_value is None else max_value - min_value
    added_variance = rare_event_variance(control, treatment, max_value, alpha)
    if max_value is None:
        return added_variance
    far_value_variance = _FAR_VALUE_WEIGHT * sum(
        missing_value_variance(estimate, value, alpha, SUFFICIENT_FAR_STUDENTS)
        for estimate in (control, treatment)
        for value in (0.0, max_value)
    )
    return max(added_variance, far_value_variance)


def missing_value_variance(
    estimate: Estimate, value: float, alpha: float, sufficient_students: int = SUFFICIENT_RARE_STUDENTS
) -> float:
    """Return the variance to add to the variance of a mean if `value` is possible and rare in the sample.

    The addition is z²/2 pseudo-observations at a distance of (value − mean), fewer with each student with that value,
    and none from `sufficient_students` on. The number of these students is not stored; at most that many students can
    explain the sample variance. The pseudo-observations are placed in the stratum with the largest weight per student.

    By hand: 1000 students with 800 ± 300 ms, of whom none can have had 30 s: 300²/29200² of a student, effectively.

    >>> estimate = Estimate(1000, 800.0, 300.0**2 / 1000)
    >>> round(missing_value_variance(estimate, 30_000.0, 0.05) ** 0.5, 1)
    62.5
    """
    squared_distance = (value - (estimate.mean or 0.0)) ** 2
    strata = estimate.strata or ((1.0, estimate),)
    sum_of_squares = sum(stratum.units * (stratum.unit_variance or 0.0) for _, stratum in strata)
    max_students = sum_of_squares / squared_distance if squared_distance else sufficient_students
    max_unit_weight = max(weight / stratum.units for weight, stratum in strata)
    missing_fraction = max(1 - max_students / sufficient_students, 0.0)
    return agresti_coull_pseudo_count(alpha) * missing_fraction * squared_distance * max_unit_weight**2


def _pseudo_observation_square(estimate: Estimate, max_value: float) -> float:
    """Return Σ (1 − K/20)·D² over both ends of the scale, the weighted squared distance of a pseudo-observation.

    With y the distance of a student from an end, the effective number of students who differ is K = (Σy)²/Σy², at a
    distance of D = Σy²/Σy. If no student differs, D is the whole scale. The weight is 0 from K = 20 on.
    """
    mean, units = estimate.mean or 0.0, estimate.units
    sample_variance = (estimate.unit_variance or 0.0) * (units - 1) / units
    weighted_square = 0.0
    for mean_distance in (mean, max_value - mean):
        mean_square = sample_variance + mean_distance * mean_distance
        rare_students = units * mean_distance * mean_distance / mean_square if mean_square else 0.0
        rare_distance = min(mean_square / mean_distance, max_value) if mean_distance > 0 else max_value
        weighted_square += max(1 - rare_students / SUFFICIENT_RARE_STUDENTS, 0.0) * rare_distance * rare_distance
    return weighted_square
