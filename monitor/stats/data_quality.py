"""Data quality by variant: the responses that are missing from the sums, and how far they could move the effect.

Responses are missing because they were rejected, were late, or name an undeclared variant. If the share of missing
responses differs between the variants, the remaining responses are not comparable: a bot that repeats an item in its
worst responses looks better if these are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from monitor.config import similar_name
from monitor.stats.comparison import compare_variants
from monitor.stats.estimates import Estimate, SampleMeanStatistic

SHARE_MDE: Final = 0.05
"""The difference of two shares for which their confidence sequence is tuned."""


class ResponseQuality(msgspec.Struct, frozen=True):
    """Counts of a variant's response events."""

    responses: int = 0
    """Responses that count."""
    rejected: Mapping[str, int] = {}
    """Reason → rejected responses."""
    late: int = 0
    placeholder_users: int = 0
    """Responses with a placeholder instead of a user id."""
    repeated_items: int = 0
    """Responses with an item more than once, of which the smallest position counts."""
    uncounted_reactions: Mapping[str, int] = {}
    """Reason → reactions to these responses that do not count."""

    @property
    def missing(self) -> int:
        """The rejected and the late responses."""
        return sum(self.rejected.values()) + self.late

    @property
    def missing_share(self) -> float:
        """The share of the missing responses among all responses; 0 without responses."""
        received = self.responses + self.missing
        return self.missing / received if received else 0.0


class DataQuality(msgspec.Struct, frozen=True):
    """Counts of an experiment's response events by variant."""

    variants: Mapping[str, ResponseQuality]
    undeclared_variants: Mapping[str, int] = {}
    """Name of an undeclared variant → responses, valid or rejected."""
    other_spellings: Mapping[str, int] = {}
    """Another spelling of the experiment's name, which is not declared → skipped responses of all variants."""
    responses_per_student: float = 1.0
    """Σm²/Σm over the students, m the responses of each: responses of one student are not independent."""

    @property
    def missing(self) -> int:
        """The responses that are missing from the sums of all variants."""
        return sum(variant.missing for variant in self.variants.values()) + self._missing_without_variant

    @property
    def _missing_without_variant(self) -> int:
        return sum(self.undeclared_variants.values()) + sum(self.other_spellings.values())

    @property
    def missing_share(self) -> float:
        """The share of the missing responses among all responses; 0 without responses."""
        received = self.missing + sum(variant.responses for variant in self.variants.values())
        return self.missing / received if received else 0.0

    def similar_variant(self, name: str) -> str | None:
        """Return the declared variant whose name is similar to an undeclared one; None without such a variant."""
        return similar_name(name, self.variants)

    def missing_share_difference(self, control: str, treatment: str, alpha: float) -> float | None:
        """Return the difference of the shares of rejected and late responses; None unless its interval excludes 0.

        The interval is an anytime-valid confidence sequence at level 1 − `alpha`.
        """
        comparison = compare_variants(
            self._missing_share_estimate(control),
            self._missing_share_estimate(treatment),
            alpha=alpha,
            mde=SHARE_MDE,
            max_value=1.0,
        )
        if comparison.lower is None or comparison.upper is None or comparison.lower <= 0 <= comparison.upper:
            return None
        return comparison.difference.effect

    def largest_effect_change(
        self, control: str, treatment: str, means: tuple[float, float], max_value: float
    ) -> float:
        """Return how far the missing responses could move the effect at worst, in either direction.

        `means` are those of control and treatment; values are from 0 to `max_value`. Responses of undeclared variants
        and of other spellings of the experiment may all belong to either variant.
        """
        undeclared = self._missing_without_variant

        def largest_change(added_to_control: int, added_to_treatment: int) -> float:
            control_share = self._missing_share_with(control, added_to_control)
            treatment_share = self._missing_share_with(treatment, added_to_treatment)
            rise = treatment_share * (max_value - means[1]) + control_share * means[0]
            fall = treatment_share * means[1] + control_share * (max_value - means[0])
            return max(rise, fall)

        return max(largest_change(undeclared, 0), largest_change(0, undeclared))

    def _missing_share_with(self, variant: str, added: int) -> float:
        counts = self.variants[variant]
        missing = counts.missing + added
        return missing / (counts.responses + missing) if missing else 0.0

    def _missing_share_estimate(self, variant: str) -> Estimate:
        counts = self.variants[variant]
        units = int((counts.responses + counts.missing) / self.responses_per_student)
        missing = min(counts.missing / self.responses_per_student, units)
        return SampleMeanStatistic(units, missing, missing).estimate()
