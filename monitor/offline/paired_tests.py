"""Paired t-test of two variants over the queries to which both have a response.

Each query is a single observation, however many raters judged the query and in however many responses: all raters have
seen the same list.

References: Student, "The probable error of a mean", Biometrika 6(1), 1908. Smucker, Allan & Carterette, "A comparison
of statistical significance tests for information retrieval evaluation", CIKM 2007 (the t-test agrees with the
randomization test, Wilcoxon's and the sign test do not). Urbano, Lima & Hanjalic, "Statistical significance testing in
information retrieval: an empirical analysis of type I, type II and type III errors", SIGIR 2019 (recommends the
t-test).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_ALPHA: Final = 0.05
_ROUNDING: Final = 1e-12
"""Differences are equal if they deviate by less than this share of the largest value."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The means of two variants over the same queries, with a test of the difference; None is undefined."""

    queries: int
    """Queries that have a value under both variants."""
    differing: int
    """Queries with different values under the two variants; the other queries only dilute the difference."""
    control: float | None
    treatment: float | None
    difference: float | None
    """Treatment minus control."""
    interval: tuple[float, float] | None
    """95 % confidence interval of the difference."""
    t: float | None
    df: int | None
    p: float | None
    """Two-sided."""


def paired_t_test(pairs: Sequence[tuple[float, float]]) -> PairedTest:
    """Return the test of (control, treatment) values, a pair per query.

    With fewer than two pairs, or if all differences are equal, the variance is 0 or undefined: t, p and interval are
    None.

    By hand: differences 1, 2, 3 have mean 2, variance 1, t = 2/√(1/3) = 3.4641 with 2 degrees of freedom; then
    p = 1 − t/√(t² + 2) = 1 − √(6/7) = 0.0742.

    >>> test = paired_t_test([(0, 1), (1, 3), (2, 5)])
    >>> test.difference, round(test.t, 4), test.df, round(test.p, 4)
    (2.0, 3.4641, 2, 0.0742)
    """
    n = len(pairs)
    if not n:
        return PairedTest(0, 0, None, None, None, None, None, None, None)
    differences = [treatment - control for control, treatment in pairs]
    rounding = _ROUNDING * max(abs(value) for pair in pairs for value in pair)
    differing = sum(abs(difference) > rounding for difference in differences)
    control, treatment = (math.fsum(values) / n for values in zip(*pairs, strict=True))
    mean = math.fsum(differences) / n
    if max(differences) - min(differences) <= rounding:
        return PairedTest(n, differing, control, treatment, mean, None, None, None, None)
    # Imported here, because the import is slow and other commands do not need SciPy.
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415

    standard_error = math.sqrt(math.fsum((difference - mean) ** 2 for difference in differences) / (n - 1) / n)
    t = mean / standard_error
    half_width = float(stdtrit(n - 1, 1 - _ALPHA / 2)) * standard_error
    p = 2 * float(stdtr(n - 1, -abs(t)))
    return PairedTest(n, differing, control, treatment, mean, (mean - half_width, mean + half_width), t, n - 1, p)
