"""Subgroup effects with control of the false discovery rate over all declared segments.

References: Wang & Ramdas, "False discovery rate control with e-values", J. R. Statist. Soc. B 84(3), 2022 (e-BH: valid
for e-values with any dependence). Xu, Wang & Ramdas, "Post-selection inference for e-value based confidence intervals",
Electron. J. Statist. 18(1), 2024 (the matching intervals).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.stats.argument_checks import check_level
from monitor.stats.comparison import VariantComparison, compare_with_mixture, tuned_mixture
from monitor.stats.estimates import Estimate


@dataclass(frozen=True, slots=True)
class SegmentComparison:
    """The comparison of treatment and control within a segment of the students."""

    name: str
    comparison: VariantComparison
    """The interval excludes 0 exactly if the segment is discovered."""
    discovered: bool
    """Whether e-BH rejects the hypothesis of no effect in this segment."""


def e_benjamini_hochberg(log_e: Sequence[float | None], alpha: float) -> list[bool]:
    """Return which of K hypotheses e-BH rejects, with a false discovery rate of at most `alpha`.

    e-BH rejects the hypotheses with the k largest e, for the largest k whose k-th largest e is at least K/(αk). None is
    a hypothesis without evidence. The arguments must be current e-values: a running maximum is not an e-value.

    By hand: K = 3 at α = 0.1 requires e ≥ 30 of the largest, ≥ 15 of the second, ≥ 10 of the third.

    >>> e_benjamini_hochberg([math.log(16), None, math.log(20)], 0.1)
    [True, False, True]
    >>> e_benjamini_hochberg([math.log(14), None, math.log(20)], 0.1)
    [False, False, False]
    """
    check_level("alpha", alpha)
    ranked_log_e = sorted((value for value in log_e if value is not None), reverse=True)
    first_threshold = math.log(len(log_e) / alpha) if log_e else 0.0
    rejected = [value for rank, value in enumerate(ranked_log_e, start=1) if value >= first_threshold - math.log(rank)]
    return [bool(rejected) and value is not None and value >= rejected[-1] for value in log_e]


def compare_segments(
    estimates_by_segment: Mapping[str, tuple[Estimate, Estimate]],
    *,
    alpha: float,
    mde: float,
    max_value: float | None = None,
    min_value: float = 0.0,
) -> tuple[SegmentComparison, ...]:
    """Return the comparison within each segment, from (control, treatment) estimates by segment.

    All declared segments count in the correction, also segments without data. With R of K segments discovered,
    intervals have level 1 − α·max(R, 1)/K. Then on average at most a fraction α of the intervals of discovered segments
    is wrong. `max_value` and `min_value`: see `compare_variants`.
    """
    mixture = tuned_mixture(mde, alpha)
    log_e = [
        compare_with_mixture(mixture, *estimates, alpha, max_value=max_value, min_value=min_value).log_e
        for estimates in estimates_by_segment.values()
    ]
    discoveries = e_benjamini_hochberg(log_e, alpha)
    segment_alpha = alpha * max(1, sum(discoveries)) / max(1, len(estimates_by_segment))
    return tuple(
        SegmentComparison(
            name,
            compare_with_mixture(
                mixture, *estimates, segment_alpha, max_value=max_value, min_value=min_value, family_alpha=alpha
            ),
            discovered,
        )
        for (name, estimates), discovered in zip(estimates_by_segment.items(), discoveries, strict=True)
    )
