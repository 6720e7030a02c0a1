"""Two variants on the same queries: the t-test of paired differences, in which a query counts once.

However many people judged a query, and in however many responses, it is one observation: its raters saw the same list.

References: Student, "The probable error of a mean", Biometrika 6(1), 1908. Smucker, Allan & Carterette, "A comparison
of statistical significance tests for information retrieval evaluation", CIKM 2007 (the t-test agrees with the
randomization test, Wilcoxon's and the sign test do not). Urbano, Lima & Hanjalic, "Statistical significance testing in
information retrieval: an empirical analysis of type I, type II and type III errors", SIGIR 2019 (recommends it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_ALPHA: Final = 0.05
_ROUNDING: Final = 1e-12
"""Differences that differ by less, as a share of the values, are the same."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Two means over the same queries, and what their difference may be worth; None is undefined."""

    queries: int
    """Queries with a value under both."""
    differing: int
    """Those of them where the two values differ: the others only dilute the difference."""
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


def paired(values: Sequence[tuple[float, float]]) -> Paired:
    """Return the comparison of (control, treatment) pairs, one per query.

    With fewer than two pairs, or where all differences are the same, there is no variance to test against: t, p and
    interval are None.

    By hand: differences 1, 2, 3 have mean 2, variance 1, t = 2/√(1/3) = 3.4641 with 2 degrees of freedom; then
    p = 1 − t/√(t² + 2) = 1 − √(6/7) = 0.0742.

    >>> found = paired([(0, 1), (1, 3), (2, 5)])
    >>> found.difference, round(found.t, 4), found.df, round(found.p, 4)
    (2.0, 3.4641, 2, 0.0742)
    """
    n = len(values)
    if not n:
        return Paired(0, 0, None, None, None, None, None, None, None)
    differences = [treatment - control for control, treatment in values]
    rounding = _ROUNDING * max(abs(value) for pair in values for value in pair)
    differing = sum(abs(difference) > rounding for difference in differences)
    control, treatment = (math.fsum(side) / n for side in zip(*values, strict=True))
    mean = math.fsum(differences) / n
    if max(differences) - min(differences) <= rounding:
        return Paired(n, differing, control, treatment, mean, None, None, None, None)
    # Here and not above: other commands need not wait for it.
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415

    error = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (n - 1) / n)
    t = mean / error
    width = float(stdtrit(n - 1, 1 - _ALPHA / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(t)))
    return Paired(n, differing, control, treatment, mean, (mean - width, mean + width), t, n - 1, p)
