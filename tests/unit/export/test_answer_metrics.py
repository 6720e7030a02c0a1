"""Tests of the texts, JSON and Prometheus metrics of experiments with answer metrics."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from prometheus_client.exposition import choose_encoder
from rich.console import Console

from monitor.analysis import DecayedMean, ExperimentSummary, MetricSummary, StoreSummary, VariantSummary
from monitor.config import MetricSpec
from monitor.export import ExperimentsCollector, experiment_footnotes, experiment_table_rows, render_summary
from monitor.stats import DataQuality, ResponseQuality
from tests.support.pages import render_experiment

THUMB_UP = MetricSpec("share:thumb_up", "share", kind="thumb_up")
ESCALATED = MetricSpec("share:escalated", "share", kind="escalated", lower_is_better=True, is_guardrail_only=True)
WATCHED = MetricSpec("sum:watched_minutes", "sum", kind="watched_minutes", most=60)
SCORE = MetricSpec("score:csat", "score", kind="csat", least=1, most=5)
LATENCY = MetricSpec("latency_ms", "latency_ms", most=60_000, lower_is_better=True)
NDCG = MetricSpec("ndcg@5", "ndcg", 5)
MEANS = {
    THUMB_UP: (0.31, 0.43),
    ESCALATED: (0.08, 0.05),
    WATCHED: (7.5, 9.0),
    SCORE: (3.0, 4.0),
    LATENCY: (975.0, 780.0),
    NDCG: (0.5, 0.6),
}


def _metric(spec: MetricSpec, mean: float, *, undefined: int = 0, capped: int = 0) -> MetricSummary:
    decayed = {"24h": DecayedMean(mean, 300.0, mean, 300.0, 0.01)}
    capped_count = capped if spec.is_capped else None
    return MetricSummary(1000, undefined, 1000 * mean, mean, mean, 0.2, decayed, capped=capped_count)


def _experiment(*specs: MetricSpec, undefined: int = 0, capped: Sequence[int] = (0, 0)) -> ExperimentSummary:
    """Return an experiment with the metrics, of which the first is the primary metric."""
    variants = {
        name: VariantSummary(
            responses=1000 + undefined,
            rated_responses=400,
            students=120,
            responses_without_user=0,
            feedback={},
            responses_with_feedback={},
            last_response_at_ms=1_767_225_600_000,
            last_event_at_ms=1_767_225_660_500,
            metrics={
                spec.name: _metric(spec, MEANS[spec][index], undefined=undefined, capped=capped[index])
                for spec in specs
            },
        )
        for index, name in enumerate(("control", "treatment"))
    }
    quality = DataQuality({name: ResponseQuality(1000) for name in variants})
    return ExperimentSummary("thumbs", "control", specs[0].name, 0, variants, metric_specs=specs, data_quality=quality)


def _store(experiment: ExperimentSummary) -> StoreSummary:
    return StoreSummary(1_767_225_660_500, {experiment.name: experiment})


def _status(experiment: ExperimentSummary) -> str:
    out = io.StringIO()
    Console(file=out, width=1000).print(render_summary(_store(experiment), now_ms=1_767_225_720_500))
    return out.getvalue()


def _scrape(experiment: ExperimentSummary) -> list[str]:
    encode, _ = choose_encoder("")
    return encode(ExperimentsCollector(lambda: _store(experiment), 1)).decode().splitlines()


class TestUnits:
    """Each metric has its own unit."""

    @pytest.mark.parametrize(
        ("spec", "values", "difference"),
        [
            (THUMB_UP, ("31.00 %", "43.00 %"), "+12.00 points"),
            (LATENCY, ("975.0 ms", "780.0 ms"), "−20.0\u202f%"),
            (SCORE, ("3.0000", "4.0000"), "+33.3\u202f%"),
        ],
    )
    def test_shares_are_in_per_cent_latencies_in_ms_and_scores_plain(
        self, spec: MetricSpec, values: tuple[str, str], difference: str
    ) -> None:
        """The difference of shares is in points, because a percentage of a percentage is ambiguous."""
        (row,) = [row for row in experiment_table_rows(_experiment(spec), 0) if row.label == "All time"]
        assert row.values == values
        assert difference in row.details[1]

    def test_the_heading_has_the_role_and_the_direction_of_a_metric(self) -> None:
        """The page explains the name, too."""
        rows = experiment_table_rows(_experiment(LATENCY, ESCALATED, NDCG), 0)
        headings = dict.fromkeys((row.heading, row.description) for row in rows if row.label == "All time")
        assert list(headings) == [
            ("latency_ms (primary metric, mean, lower is better)", "Mean latency"),
            (
                "share:escalated (guardrail, mean, lower is better)",
                "Share of responses with feedback 'escalated'",
            ),
            ("ndcg@5 (mean)", ""),
        ]

    def test_the_page_explains_the_names_of_answer_metrics(self) -> None:
        """A newcomer does not know the names of the configuration."""
        page = render_experiment(_store(_experiment(THUMB_UP)), now_ms=1_767_225_720_500)
        assert "Share of responses with feedback &#39;thumb_up&#39;" in page


class TestWordsOfRankings:
    """Texts on grades and gains are for ranking metrics."""

    def test_an_experiment_without_ranking_metrics_has_no_word_on_gains(self) -> None:
        """A score without a value is no undefined nDCG."""
        footnotes = " ".join(experiment_footnotes(_experiment(SCORE, LATENCY, undefined=7), 0))
        assert "gain" not in footnotes
        assert "ranking" not in footnotes
        assert "14 responses without feedback 'csat': not in the mean score of 'csat'." in footnotes
        assert "14 responses without latency: not in the mean latency." in footnotes
        assert "A response is rated if it has feedback that the metrics use." in footnotes

    def test_undefined_values_of_both_sorts_of_metrics_are_counted_separately(self) -> None:
        """Each sort has its own reason."""
        footnotes = " ".join(experiment_footnotes(_experiment(NDCG, SCORE, undefined=7), 0))
        assert "14 rated responses have no item with a gain above 0." in footnotes
        assert "14 responses without feedback 'csat'" in footnotes

    def test_without_metrics_of_feedback_no_share_of_rated_responses_is_shown(self) -> None:
        """No response can be rated."""
        assert "rated" not in _status(_experiment(LATENCY))
        assert "Share of rated responses" in _status(_experiment(LATENCY, THUMB_UP))

    def test_answer_metrics_have_no_row_over_all_responses(self) -> None:
        """Their mean is over all responses with a value."""
        assert "Over all responses" not in _status(_experiment(SCORE, undefined=7))


class TestCappedValues:
    """Values above the range of a metric are reported."""

    def test_capped_values_have_a_row_of_data_quality(self) -> None:
        """With the cap and the share of the metric's responses."""
        rows = experiment_table_rows(_experiment(WATCHED, capped=(20, 0)), 0)
        (row,) = [row for row in rows if row.group == "quality"]
        assert row.label == "sum:watched_minutes, capped at 60"
        assert (row.values, row.details) == (("20", "0"), ("2.0\u202f%", ""))

    def test_without_capped_values_there_is_no_row(self) -> None:
        """Zeros would be noise."""
        assert "capped" not in _status(_experiment(WATCHED))

    def test_json_has_the_number_of_capped_values(self) -> None:
        """Null for a metric without a cap."""
        content = _experiment(WATCHED, SCORE, capped=(20, 0)).to_json()["variants"]["control"]["metrics"]
        assert (content["sum:watched_minutes"]["capped"], content["score:csat"]["capped"]) == (20, None)

    def test_prometheus_has_a_gauge_for_each_metric_with_a_cap(self) -> None:
        """Zeros are exported, so that a rise can be seen."""
        lines = [
            line
            for line in _scrape(_experiment(WATCHED, SCORE, capped=(20, 0)))
            if line.startswith("abmonitor_capped_responses{")
        ]
        labels = 'experiment="thumbs",metric="sum:watched_minutes",variant='
        assert lines == [
            f'abmonitor_capped_responses{{{labels}"control"}} 20.0',
            f'abmonitor_capped_responses{{{labels}"treatment"}} 0.0',
        ]


class TestDirections:
    """Machines can read which metrics are better if they are lower."""

    def test_json_names_the_metrics_of_which_lower_values_are_better(self) -> None:
        """In the objects of `status --json` and `verdict --json`."""
        store = _store(_experiment(THUMB_UP, ESCALATED, LATENCY))
        expected = ["share:escalated", "latency_ms"]
        assert store.to_json()["experiments"]["thumbs"]["lower_is_better"] == expected
        assert store.verdict_json("thumbs")["lower_is_better"] == expected

    @pytest.mark.parametrize(("primary", "value"), [(LATENCY, "true"), (THUMB_UP, "false")])
    def test_prometheus_has_the_direction_of_the_primary_metric(self, primary: MetricSpec, value: str) -> None:
        """Alerts on drops need the direction."""
        (line,) = [line for line in _scrape(_experiment(primary)) if line.startswith("abmonitor_experiment_info{")]
        assert f'lower_is_better="{value}"' in line
