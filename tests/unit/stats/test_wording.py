"""The sentences of verdicts: numbers with units, levels, allowed changes."""

from __future__ import annotations

import pytest

from monitor.stats import (
    Estimate,
    Guardrail,
    GuardrailResult,
    compare_variants,
    describe_change,
    describe_guardrail,
    evaluate_guardrail,
)
from monitor.stats.estimates import estimate_effect
from monitor.stats.guardrails import GuardrailState

ARMS = Estimate(500, 0.1, 1e-6), Estimate(500, 0.2, 1e-6)


def _result(guardrail: Guardrail, least: float | None, most: float | None, state: GuardrailState) -> GuardrailResult:
    return GuardrailResult(guardrail, *ARMS, estimate_effect(*ARMS), 0.05, 0.05, guardrail.margin, least, most, state)


ESCALATED = Guardrail("share:escalated", "up", 0.01)
RATED = Guardrail("rated_share", "down", 0.05)
LATENCY = Guardrail("latency_ms", "up", 50.0)
METRIC = Guardrail("ndcg@5", "down", 0.02)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (
            _result(ESCALATED, 0.002, 0.01533, "open"),
            (
                "Share of responses with feedback 'escalated' rose by 0.2 to 1.5 percentage points; the allowed "
                "increase is 1.0, so this is still open."
            ),
        ),
        (
            _result(ESCALATED, -0.003, 0.015, "open"),
            (
                "Share of responses with feedback 'escalated' changed by −0.3 to +1.5 percentage points; the allowed "
                "increase is 1.0, so this is still open."
            ),
        ),
        (
            _result(RATED, -0.01, 0.06, "open"),
            (
                "Share of rated responses changed by −6 to +1 percentage points; the allowed decrease is 5, so this "
                "is still open."
            ),
        ),
        (
            _result(RATED, -0.01, 0.03042, "held"),
            (
                "Share of rated responses did not fall by more than 3.0 percentage points; the allowed decrease is "
                "5.0, so the guardrail holds."
            ),
        ),
        (
            _result(LATENCY, -300.0, -12.0, "held"),
            "Mean latency did not rise; the allowed increase is 50 ms, so the guardrail holds.",
        ),
        (
            _result(LATENCY, 81.0, 190.0, "crossed"),
            "Mean latency rose by 81 to 190 ms; the allowed increase is 50 ms, so the guardrail failed.",
        ),
        (
            _result(METRIC, 0.001, 0.031, "open"),
            "ndcg@5 fell by 0.001 to 0.031; the allowed decrease is 0.020, so this is still open.",
        ),
        (
            _result(ESCALATED, None, None, "unknown"),
            (
                "The share of responses with feedback 'escalated' has no bounds yet; the allowed increase is 1.0 "
                "percentage points, so this is still open."
            ),
        ),
    ],
)
def test_a_guardrail_has_a_sentence_with_bounds_and_allowance(result: GuardrailResult, sentence: str) -> None:
    """The direction is that of the metric; the unit is named once."""
    assert describe_guardrail(result) == sentence


def test_a_change_has_the_interval_and_the_level_of_its_own_alpha() -> None:
    """With several treatments the level is higher; a loss is "fell", an interval with 0 has signs."""
    arms = Estimate(400, 2.0, 0.002), Estimate(400, 2.17, 0.002)
    unclear = compare_variants(*arms, alpha=0.05, mde=0.1)
    assert describe_change("dcg@5", unclear) == "dcg@5 changed by +0.17 (95 % confidence sequence −0.03 to +0.37)"
    loss = compare_variants(Estimate(4000, 2.0, 1e-4), Estimate(4000, 1.7, 1e-4), alpha=0.05 / 3, mde=0.1)
    assert describe_change("dcg@5", loss).startswith("dcg@5 fell by 0.300 (98.33 % confidence sequence 0.250 to 0.350)")
    few = compare_variants(Estimate(3, 2.0, 0.1), Estimate(3, 2.5, 0.1), alpha=0.05, mde=0.1)
    assert describe_change("dcg@5", few) == "dcg@5 changed by +0.50 (too few data for a confidence sequence)"


def test_a_real_result_without_students_is_unknown() -> None:
    """The sentence needs no bounds."""
    result = evaluate_guardrail(ESCALATED, Estimate(10, 0.1, 0.01), Estimate(10, 0.1, 0.01), alpha=0.05)
    assert result.state == "unknown"
    assert "has no bounds yet" in describe_guardrail(result)
