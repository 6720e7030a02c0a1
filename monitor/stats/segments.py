"""Effects within parts of the students, without being fooled by how many parts there are.

References: Wang & Ramdas, "False discovery rate control with e-values", J. R. Statist. Soc. B 84(3), 2022 (e-BH: valid
however the e-values depend on each other). Xu, Wang & Ramdas, "Post-selection inference for e-value based confidence
intervals", Electron. J. Statist. 18(1), 2024 (the intervals that go with it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.stats.argument_checks import level
from monitor.stats.comparison import Comparison, compare_under, mixture_for
from monitor.stats.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Segment:
    """A comparison within one segment."""

    name: str
    comparison: Comparison
    """Its interval excludes 0 exactly if the segment is discovered."""
    discovered: bool


def e_bh(log_e: Sequence[float | None], alpha: float) -> list[bool]:
    """Return which of K hypotheses are rejected, with a false discovery rate of at most `alpha`.

    Those with the k largest e, for the largest k whose k-th e is at least K/(αk). None: there is no evidence.
    They must be e-values of now: a running maximum is not an e-value.

    By hand: K = 3 at α = 0.1 asks e ≥ 30 of the largest, ≥ 15 of the second, ≥ 10 of the third.

    >>> e_bh([math.log(16), None, math.log(20)], 0.1)
    [True, False, True]
    >>> e_bh([math.log(14), None, math.log(20)], 0.1)
    [False, False, False]
    """
    level("alpha", alpha)
    known = sorted((each for each in log_e if each is not None), reverse=True)
    needed = math.log(len(log_e) / alpha) if log_e else 0.0
    reached = [each for rank, each in enumerate(known, start=1) if each >= needed - math.log(rank)]
    return [bool(reached) and each is not None and each >= reached[-1] for each in log_e]


def compare_segments(
    parts: Mapping[str, tuple[Estimate, Estimate]], *, alpha: float, mde: float, largest: float | None = None
) -> tuple[Segment, ...]:
    """Return the comparison (control, treatment) of each segment; all declared ones count, also those without data.

    With R of K segments discovered, intervals have level 1 − α·max(R, 1)/K: those of discovered segments are wrong at a
    rate of at most α. `largest`: see `compare`.
    """
    mixture = mixture_for(mde, alpha)
    looked_at = {name: compare_under(mixture, *pair, alpha, largest=largest) for name, pair in parts.items()}
    discovered = e_bh([comparison.log_e for comparison in looked_at.values()], alpha)
    own = alpha * max(1, sum(discovered)) / max(1, len(parts))
    return tuple(
        Segment(name, compare_under(mixture, *pair, own, largest=largest, family_alpha=alpha), found)
        for (name, pair), found in zip(parts.items(), discovered, strict=True)
    )
