"""From sums to a verdict that stays right while everybody watches.

Pure functions of numbers: no clock, no store. Estimands, formulas, sources, and what may not be claimed:
docs/statistics.md.
"""

from __future__ import annotations

from monitor.stats.comparison import SHOWN_UNITS, Comparison, compare, split_alpha
from monitor.stats.cuped import Adjusted, PairedSums, adjust
from monitor.stats.decayed_means import band_constant, design_effect
from monitor.stats.decision import State, Verdict, decide
from monitor.stats.estimates import Estimand, Estimate, UnitSums, stratified
from monitor.stats.evidence import Adjustment, Arms, Criteria, Diagnostic, Evidence, Skipped, Watched
from monitor.stats.guardrails import Guardrail, GuardrailResult, GuardrailState
from monitor.stats.segments import Segment, compare_segments
from monitor.stats.srm import Phase, SampleRatio, sample_ratio_test
from monitor.stats.stored_sums import (
    Cohorts,
    Population,
    StoredStudents,
    closed_pairs,
    closed_part,
    closed_rated_shares,
    closed_units,
    closed_watched,
    is_closed,
    live_rated_shares,
    pair_scale,
    units_place,
)

__all__ = [
    "SHOWN_UNITS",
    "Adjusted",
    "Adjustment",
    "Arms",
    "Cohorts",
    "Comparison",
    "Criteria",
    "Diagnostic",
    "Estimand",
    "Estimate",
    "Evidence",
    "Guardrail",
    "GuardrailResult",
    "GuardrailState",
    "PairedSums",
    "Phase",
    "Population",
    "SampleRatio",
    "Segment",
    "Skipped",
    "State",
    "StoredStudents",
    "UnitSums",
    "Verdict",
    "Watched",
    "adjust",
    "band_constant",
    "closed_pairs",
    "closed_part",
    "closed_rated_shares",
    "closed_units",
    "closed_watched",
    "compare",
    "compare_segments",
    "decide",
    "design_effect",
    "is_closed",
    "live_rated_shares",
    "pair_scale",
    "sample_ratio_test",
    "split_alpha",
    "stratified",
    "units_place",
]
