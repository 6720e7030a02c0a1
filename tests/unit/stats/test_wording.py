"""The sentences of verdicts: numbers with units, levels, allowed changes."""

from __future__ import annotations

import pytest

from monitor.config import DisplayText, DisplayTexts
from monitor.stats import (
    Estimate,
    Guardrail,
    GuardrailResult,
    capitalized_metric_label,
    compare_variants,
    describe_change,
    describe_guardrail,
    evaluate_guardrail,
    format_amount,
    format_difference,
    format_mean,
    metric_label,
    metric_unit,
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


TEXTS = DisplayTexts(
    metrics={
        "dcg@5": DisplayText("answer quality", "points"),
        "share:escalated": DisplayText("eCalls"),
        "rated_share": DisplayText("share of answers with stars"),
        "sum:minutes": DisplayText(unit="min"),
        "return_days": DisplayText("days back", "visits"),
    },
    kinds={"csat": DisplayText("satisfaction"), "minutes": DisplayText("minutes watched")},
)


@pytest.mark.parametrize(
    ("metric", "label", "capitalized"),
    [
        ("dcg@5", "answer quality", "Answer quality"),
        ("ndcg@5", "ndcg@5", "ndcg@5"),
        ("share:escalated", "eCalls", "eCalls"),
        ("share:csat>=4", "share of responses with feedback 'satisfaction' of at least 4", None),
        ("score:csat", "mean score of 'satisfaction'", None),
        ("sum:minutes", "sum of 'minutes watched' per response", None),
        ("per_student:dcg@5", "sum of answer quality per student", None),
        ("sessions_with:ndcg@5", "share of sessions with ndcg@5 above 0", None),
        ("latency_ms", "mean latency", "Mean latency"),
    ],
)
def test_a_configured_label_replaces_the_name_of_a_metric_or_kind(
    metric: str, label: str, capitalized: str | None
) -> None:
    """At the start of a sentence, a first word without capital letters gets one."""
    assert metric_label(metric, TEXTS) == label
    assert capitalized_metric_label(metric, TEXTS) == (capitalized or label[0].upper() + label[1:])


def test_a_configured_unit_replaces_the_default_one_but_not_that_of_shares() -> None:
    """Shares are scaled to per cent, so their unit is fixed."""
    units = {name: metric_unit(name, TEXTS) for name in ("dcg@5", "return_days", "rated_share", "latency_ms")}
    expected = {"dcg@5": " points", "return_days": " visits", "rated_share": " percentage points", "latency_ms": " ms"}
    assert units == expected
    assert format_amount("dcg@5", 0.4, TEXTS, sign=True) == "+0.4 points"
    assert format_mean("sum:minutes", 12.5, TEXTS) == "12.5000 min"
    assert format_difference("dcg@5", -0.25, TEXTS, sign=True) == "−0.2500 points"
    assert format_difference("share:liked", 0.012, TEXTS, sign=True) == "+1.20 points"


def test_sentences_on_changes_and_guardrails_have_labels_and_units() -> None:
    """As those without labels."""
    comparison = compare_variants(Estimate(500, 1.0, 1e-4), Estimate(500, 1.4, 1e-4), alpha=0.05, mde=0.1)
    sentence = describe_change("dcg@5", comparison, TEXTS)
    assert sentence.startswith("answer quality improved by 0.400 points (95 % confidence sequence ")
    assert describe_guardrail(_result(RATED, 0.001, 0.002, "tolerable"), TEXTS).startswith(
        "Share of answers with stars fell by 0.1 to 0.2 percentage points; "
    )
