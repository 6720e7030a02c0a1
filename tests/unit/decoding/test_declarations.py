"""The suggested declaration of an experiment that was seen in events."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from monitor.analysis import UndeclaredExperiment
from monitor.config import ExperimentSettings, parse_settings
from monitor.decoding import suggest_declaration
from monitor.errors import UsageError

START = 1_767_225_600_000
_TEMPLATE: dict[str, Any] = {
    "name": 'ranker "v2"',
    "control": "x",
    "variants": {"x": 0.5, "y": 0.5},
    "unit": "group",
    "metrics": ["ndcg@10", "dcg@3"],
    "primary": "dcg@3",
    "gain": {"0": 0, "0.5": 1, "1": 2.25},
    "max_grade": 1,
    "relevant_grade": 0.5,
    "grades": {"helpful": 1, "stars 1-5": [[1, 0], [4, 0.5], [5, 1]]},
    "feedback_window": "90m",
    "allowed_lateness": "3d",
    "retention": "60d",
    "exposure_days": 5,
    "population": "all",
    "guardrails": [],
    "mde": 0.02,
    "starts_at": "2026-01-01T00:00:00Z",
}


def _undeclared(name: str, variants: dict[str, int], other_variant_responses: int = 0) -> UndeclaredExperiment:
    responses = sum(variants.values()) + other_variant_responses
    return UndeclaredExperiment(name, responses, START, START + 1, variants, other_variant_responses)


def _load(text: str) -> ExperimentSettings:
    (experiment,) = parse_settings(tomllib.loads(text), {}).experiments
    return experiment


def test_a_declaration_has_the_names_and_shares_that_were_seen() -> None:
    """Equal shares are assumed unless the responses contradict. Without starts_at, all history counts."""
    text = suggest_declaration(_undeclared("new", {"treatment": 510, "control": 490}))
    experiment = _load(text)
    assert (experiment.name, experiment.control, experiment.starts_at_ms) == ("new", "control", None)
    assert experiment.variants == {"control": 0.5, "treatment": 0.5}
    assert text.startswith(
        "# seen: 1,000 responses from 2026-01-01T00:00:00.000Z to 2026-01-01T00:00:00.001Z: treatment 51.0%, "
        "control 49.0%\n[[experiments]]\n"
    )
    assert "intended shares of students: the SRM test" in text
    assert _load(suggest_declaration(_undeclared("new", {"a": 900, "b": 100}))).variants == {"a": 0.9, "b": 0.1}


def test_left_out_variants_are_named_in_a_comment() -> None:
    """A variant with a share of 0 would make the verdict invalid."""
    text = suggest_declaration(_undeclared("new", {"a": 500, "b": 500, "debug": 3, "\n": 2}, 1))
    assert set(_load(text).variants) == {"a", "b"}
    assert "not valid: debug 0.3%, ? 0.2%, further ones\n" in text


@pytest.mark.parametrize("variants", [{}, {"only": 10}, {"treatment": 10}, {"\n": 10}])
def test_a_declaration_with_less_than_two_variants_has_a_todo(variants: dict[str, int]) -> None:
    """The configuration needs two variants."""
    text = suggest_declaration(_undeclared("new", variants))
    assert "# TODO: less than two variants were seen; name the others" in text
    assert len(_load(text).variants) == 2


def test_metrics_grades_and_windows_are_copied_from_a_template() -> None:
    """Names, shares, times and effects of the template are not copied, nor are its guardrails."""
    (template,) = parse_settings({"experiments": [_TEMPLATE]}, {}).experiments
    text = suggest_declaration(_undeclared("new", {"a": 1, "b": 1}), template)
    experiment = _load(text)
    for field in (
        "unit", "metrics", "primary", "gain", "max_grade", "relevant_grade", "grades", "feedback_window_ms",
        "allowed_lateness_ms", "retention_ms", "exposure_days",
    ):  # fmt: skip
        assert getattr(experiment, field) == getattr(template, field)
    assert (experiment.decision.population, experiment.decision.mde) == ("all", None)
    assert (set(experiment.variants), experiment.starts_at_ms) == ({"a", "b"}, None)
    assert '# As in experiment "ranker \\"v2\\"":' in text


def test_answer_metrics_of_a_template_are_copied_with_their_settings() -> None:
    """Also directions, ranges, metrics of students and the zone of days; metrics of guardrails only are not."""
    table = {
        "name": "old",
        "control": "a",
        "variants": {"a": 0.5, "b": 0.5},
        "metrics": ["share:bad", "latency_ms", "per_student:share:bad"],
        "lower_is_better": ["share:bad"],
        "ranges": {"latency_ms": [0, 5000], "score:csat": [1, 5]},
        "silence": {"score:csat": 1},
        "day": "Europe/Berlin",
        "guardrails": [{"metric": "score:csat", "harmful_direction": "down", "margin": 0.1}],
    }
    (template,) = parse_settings({"experiments": [table]}, {}).experiments
    experiment = _load(suggest_declaration(_undeclared("new", {"a": 1, "b": 1}), template))
    assert experiment.metrics == template.metrics[:2]
    assert experiment.student_metrics == ("per_student:share:bad",)
    assert experiment.day_zone == "Europe/Berlin"


def test_a_template_with_default_settings_adds_nothing() -> None:
    """Only differences from the defaults are written."""
    plain = suggest_declaration(_undeclared("new", {"a": 1, "b": 1}))
    assert suggest_declaration(_undeclared("new", {"a": 1, "b": 1}), _load(plain)) == plain


@pytest.mark.parametrize("name", ["a\nb", " a", "", "x" * 99 + "…"])
def test_a_name_that_no_configuration_can_contain_is_rejected(name: str) -> None:
    """The producer has to correct the name."""
    with pytest.raises(UsageError, match="Correct the name in the events"):
        suggest_declaration(_undeclared(name, {"a": 1, "b": 1}))
