"""Tests of the settings of an experiment in the words of the configuration file."""

from __future__ import annotations

from dataclasses import replace

from monitor.config import MetricSpec
from monitor.export import describe_settings
from tests.support.streams import EXPERIMENT


class TestAnswerMetrics:
    """The keys that define answer metrics."""

    def test_ranges_silence_and_directions_are_shown(self) -> None:
        """Metrics that only guardrails name are no part of `metrics`."""
        score = MetricSpec("score:csat", "score", kind="csat", least=1, most=5, silence=1)
        escalated = MetricSpec(
            "share:escalated", "share", kind="escalated", lower_is_better=True, is_guardrail_only=True
        )
        settings = describe_settings(replace(EXPERIMENT, metrics=(score, escalated)))
        assert settings["metrics"] == ["score:csat"]
        assert settings["ranges"] == {"score:csat": [1, 5]}
        assert settings["silence"] == {"score:csat": 1}
        assert settings["lower_is_better"] == ["share:escalated"]

    def test_an_experiment_without_answer_metrics_has_none_of_the_keys(self) -> None:
        """They would be empty."""
        assert not {"ranges", "silence", "lower_is_better"} & describe_settings(EXPERIMENT).keys()
