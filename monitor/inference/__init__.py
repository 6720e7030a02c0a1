"""From sums to a verdict that stays right while everybody watches.

Pure functions of numbers: no clock, no store. Estimands, formulas, sources, and what may not be claimed:
docs/statistics.md.
"""

from __future__ import annotations

from monitor.inference.comparison import (
    DECIDING_UNITS,
    SHOWN_UNITS,
    Comparison,
    compare,
    days_to_resolve,
    resolving_information,
    split_alpha,
)
from monitor.inference.cuped import Adjusted, PairedSums, adjust, variance_reduction
from monitor.inference.decayed import band, band_constant, design_effect
from monitor.inference.estimates import Effect, Estimand, Estimate, RatioSums, UnitSums, effect_of, stratified
from monitor.inference.evidence import Adjustment, Arms, Criteria, Diagnostic, Evidence, Skipped, Watched
from monitor.inference.guardrails import Guardrail, GuardrailResult, GuardrailState, watch
from monitor.inference.sample_ratio import Phase, SampleRatio, sample_ratio_test
from monitor.inference.segments import Segment, compare_segments, e_bh
from monitor.inference.sequences import HalfNormalMixture, NormalMixture, anytime_p, mde_information
from monitor.inference.stored import (
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
    live_sums,
    pair_scale,
    units_place,
)
from monitor.inference.verdict import Reason, State, Verdict, decide, evidence_from

__all__ = [
    "DECIDING_UNITS",
    "SHOWN_UNITS",
    "Adjusted",
    "Adjustment",
    "Arms",
    "Cohorts",
    "Comparison",
    "Criteria",
    "Diagnostic",
    "Effect",
    "Estimand",
    "Estimate",
    "Evidence",
    "Guardrail",
    "GuardrailResult",
    "GuardrailState",
    "HalfNormalMixture",
    "NormalMixture",
    "PairedSums",
    "Phase",
    "Population",
    "RatioSums",
    "Reason",
    "SampleRatio",
    "Segment",
    "Skipped",
    "State",
    "StoredStudents",
    "UnitSums",
    "Verdict",
    "Watched",
    "adjust",
    "anytime_p",
    "band",
    "band_constant",
    "closed_pairs",
    "closed_part",
    "closed_rated_shares",
    "closed_units",
    "closed_watched",
    "compare",
    "compare_segments",
    "days_to_resolve",
    "decide",
    "design_effect",
    "e_bh",
    "effect_of",
    "evidence_from",
    "is_closed",
    "live_rated_shares",
    "live_sums",
    "mde_information",
    "pair_scale",
    "resolving_information",
    "sample_ratio_test",
    "split_alpha",
    "stratified",
    "units_place",
    "variance_reduction",
    "watch",
]
