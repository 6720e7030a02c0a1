"""Exported values of experiments: JSON, metrics, terminal, web page; and values that are omitted."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from monitor.analysis import StatePeriod, TriageEntry, UndeclaredExperiment
from monitor.analysis.snapshots import ExperimentSnapshot, TreatmentSnapshot
from monitor.analysis.summary import (
    DecayedMean,
    ExperimentSummary,
    MetricSummary,
    StoreSummary,
    TrafficSummary,
    VariantSummary,
)
from monitor.clock import HOUR_MS
from monitor.config import MetricSpec
from monitor.errors import StoreUnavailable
from monitor.export import METRIC_CATALOGUE, VERDICT_EXIT_CODES, ExperimentsCollector, render_summary, render_verdicts
from monitor.export.presentation import (
    STATE_DESCRIPTIONS,
    STATE_TITLES,
    decay_label,
    describe_as_of,
    experiment_footnotes,
    experiment_table_rows,
    format_age,
    format_percent,
    format_time_with_age,
    undeclared_notes,
    undeclared_rows,
)
from monitor.metrics.traffic import LATENCY_BOUNDS_MS, TrafficCounts
from monitor.stats import VerdictState
from monitor.stats.decision import Reason, ReasonCode
from monitor.web.routes import experiment_json
from tests.support.pages import render_experiment, render_list, render_service
from tests.support.student_groups import (
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    STUDENTS_WITH_SEGMENT_EFFECT,
    SUBGROUP_EXPERIMENT,
    sum_students,
    time_after_days,
)
from tests.support.units import analyze

ROOT = Path(__file__).parents[3]
ABSENT = DecayedMean(None, None, None, None, None)
DCG = MetricSpec("dcg@5", "dcg", 5)
METRIC = MetricSummary(
    count=400,
    undefined=0,
    sum=812.25,
    mean=2.030625,
    mean_over_all=0.81225,
    variance=1.9,
    decayed={"24h": DecayedMean(2.1, 212.4, 0.85, 530.9, 0.09)},
)
CONTROL = VariantSummary(
    responses=1000,
    rated_responses=400,
    students=120,
    responses_without_user=3,
    feedback={"rating": 640, "escalated": 31},
    responses_with_feedback={"rating": 400, "escalated": 31},
    last_response_at_ms=1_767_225_600_000,
    last_event_at_ms=1_767_225_660_500,
    metrics={"dcg@5": METRIC},
)
EMPTY_VARIANT = VariantSummary(
    0, 0, 0, 0, {}, {}, None, None, {"dcg@5": MetricSummary(0, 0, 0.0, None, None, None, {"24h": ABSENT})}
)
SUMMARY = StoreSummary(
    as_of_ms=1_767_225_660_500,
    experiments={
        "ranker-v2": ExperimentSummary(
            "ranker-v2",
            "control",
            "dcg@5",
            2,
            {"treatment": EMPTY_VARIANT, "control": CONTROL},
            metric_specs=(DCG,),
        )
    },
)


def _scrape(summary: StoreSummary, min_students: int = 1) -> list[str]:
    return _samples(ExperimentsCollector(lambda: summary, min_students))


def _samples(collector: ExperimentsCollector) -> list[str]:
    encode, _ = choose_encoder("")
    return [line for line in encode(collector).decode().splitlines() if not line.startswith("#")]


class TestJson:
    """The object of `status --json`."""

    def test_status_json_has_the_documented_shape(self) -> None:
        """Numbers are numbers, absent statistics are null, times are ISO with milliseconds."""
        summary_json = SUMMARY.to_json()
        assert summary_json["as_of"] == "2026-01-01T00:01:00.500Z"
        control = summary_json["experiments"]["ranker-v2"]["variants"]["control"]
        assert (control["responses"], control["feedback"]) == (1000, {"rating": 640, "escalated": 31})
        assert control["last_response_at"] == "2026-01-01T00:00:00.000Z"
        assert control["metrics"]["dcg@5"]["decayed"]["24h"]["effective_count"] == 212.4
        treatment = summary_json["experiments"]["ranker-v2"]["variants"]["treatment"]
        assert treatment["last_response_at"] is None
        assert treatment["metrics"]["dcg@5"]["mean"] is None


class TestCollector:
    """Metrics built at scrape time."""

    def test_undefined_values_have_no_sample_and_counts_start_at_zero(self) -> None:
        """A variant without events has responses 0 and no mean."""
        lines = _scrape(SUMMARY)
        assert 'abmonitor_responses{experiment="ranker-v2",variant="treatment"} 0.0' in lines
        assert 'abmonitor_metric_mean{decay="24h",experiment="ranker-v2",metric="dcg@5",variant="control"} 2.1' in lines
        assert (
            'abmonitor_metric_mean{decay="none",experiment="ranker-v2",metric="dcg@5",variant="control"} 2.030625'
            in lines
        )
        assert (
            'abmonitor_metric_standard_error{decay="24h",experiment="ranker-v2",metric="dcg@5",variant="control"} 0.09'
            in lines
        )
        assert not [line for line in lines if "mean" in line and "treatment" in line]
        assert not [line for line in lines if "last_event" in line and "treatment" in line]
        labels = 'control="control",experiment="ranker-v2",lower_is_better="false",primary="dcg@5"'
        assert f"abmonitor_experiment_info{{{labels}}} 1.0" in lines
        assert "abmonitor_store_up 1.0" in lines

    def test_the_all_time_standard_error_needs_a_design_effect(self) -> None:
        """By hand: √(1.9/400 · 1.44) = 0.0827. Without a design effect, the standard error is undefined."""
        variant = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, design_effect=1.44)})
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": variant})
        lines = _scrape(replace(SUMMARY, experiments={"ranker-v2": experiment}))
        name = 'abmonitor_metric_standard_error{decay="none"'
        (line,) = [line for line in lines if line.startswith(name)]
        assert abs(float(line.split()[-1]) - 0.0827043) < 1e-6
        assert not [line for line in _scrape(SUMMARY) if line.startswith(name)]

    def test_means_over_few_students_have_no_sample(self) -> None:
        """min_display_students hides the metrics, not the counts."""
        lines = _scrape(SUMMARY, min_students=121)
        assert not [line for line in lines if line.startswith("abmonitor_metric")]
        assert 'abmonitor_students{experiment="ranker-v2",variant="control"} 120.0' in lines

    def test_label_values_are_escaped(self) -> None:
        """Quotes and backslashes in a name stay in their label."""
        odd = replace(SUMMARY.experiments["ranker-v2"], name='a"b\\c')
        assert any('experiment="a\\"b\\\\c"' in line for line in _scrape(replace(SUMMARY, experiments={"x": odd})))

    def test_without_a_store_only_store_up_is_exported(self) -> None:
        """The scrape succeeds with `abmonitor_store_up` 0."""

        def read_summary() -> StoreSummary:
            raise StoreUnavailable("no store")

        assert _samples(ExperimentsCollector(read_summary, 1)) == ["abmonitor_store_up 0.0"]

    def test_an_outage_of_the_store_is_logged_by_its_first_scrape_only(self, caplog: pytest.LogCaptureFixture) -> None:
        """Scrapes are frequent: a line for each would hide the line on the pause."""
        is_down = [True, True, False, True]

        def read_summary() -> StoreSummary:
            if is_down.pop(0):
                raise StoreUnavailable("no store")
            return SUMMARY

        collector = ExperimentsCollector(read_summary, 1)
        for _ in range(4):
            _samples(collector)
        levels = [record.levelname for record in caplog.records if record.name == "monitor.export.prometheus"]
        assert levels.count("WARNING") == 2

    def test_the_starts_of_workers_are_a_counter(self) -> None:
        """Restarts between two scrapes are visible."""
        assert "abmonitor_starts_total 38.0" in _samples(ExperimentsCollector(lambda: SUMMARY, 1, lambda: 38))

    @pytest.mark.parametrize(
        ("accept", "parse"),
        [("", text_string_to_metric_families), ("application/openmetrics-text;version=1.0.0", openmetrics_families)],
    )
    def test_every_exported_family_can_be_parsed(self, accept: str, parse: Callable[[str], Iterable[Metric]]) -> None:
        """In both text formats, with a histogram, an info metric, and unusual names of experiments and variants."""
        name = 'a "name"\\with\n{everything}, ü'
        traffic = TrafficCounts(12_345_678, 3, 9_876_543_210, tuple(range(len(LATENCY_BOUNDS_MS) + 1)))
        control = replace(CONTROL, traffic=TrafficSummary(traffic, traffic, 0, 1))
        analyzed = _analyzed_summary().experiments["ranker"]
        experiment = replace(analyzed, variants={"control": control, "treatment": CONTROL, name: EMPTY_VARIANT})
        collector = ExperimentsCollector(
            lambda: StoreSummary(0, {"ranker": experiment, name: replace(experiment, name=name)}), 1
        )
        encode, _ = choose_encoder(accept)

        def samples(families: Iterable[Metric]) -> list[tuple[str, list[tuple[str, str]], float]]:
            return sorted(
                (sample.name, sorted(sample.labels.items()), float(sample.value))
                for family in families
                for sample in family.samples
            )

        parsed_samples = samples(parse(encode(collector).decode()))
        assert parsed_samples == samples(collector.collect())
        latencies = [sample for sample in parsed_samples if sample[0] == "abmonitor_response_latency_seconds_sum"]
        variant_labels = [("experiment", name), ("variant", "control")]
        assert ("abmonitor_response_latency_seconds_sum", variant_labels, 9_876_543.21) in latencies
        info_labels = [("control", "control"), ("experiment", name), ("lower_is_better", "false"), ("primary", "dcg@5")]
        assert ("abmonitor_experiment_info", info_labels, 1.0) in parsed_samples


def _analyzed_summary(at_days: float = 14.0) -> StoreSummary:
    """Return a summary of two variants; the treatment has a positive effect."""
    analysis = analyze(
        SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT), time_after_days(at_days)
    )
    variants = {"treatment": CONTROL, "control": CONTROL}
    experiment = ExperimentSummary("ranker", "control", "dcg@5", 2, variants, analysis, (DCG,))
    return StoreSummary(as_of_ms=analysis.as_of_ms, experiments={"ranker": experiment})


class TestCatalogue:
    """The catalogue of the metrics of both endpoints."""

    def test_every_metric_is_documented_with_its_labels(self) -> None:
        """docs/http.md has an entry for each metric, with the labels of the metric."""
        lines = (ROOT / "docs/http.md").read_text().splitlines()
        entries = [line for line in lines if line.startswith("- `abmonitor_")]
        for metric in METRIC_CATALOGUE:
            named = [entry for entry in entries if f"`{metric.name}`" in entry]
            assert any("the same" in entry or all(label in entry for label in metric.label_names) for entry in named), (
                metric.name
            )


_NEW = UndeclaredExperiment(
    "new ranker", 1_003, 1_767_225_600_000, 1_767_225_660_500, {"control": 600, "treatment": 400}, 3
)
_ODD = UndeclaredExperiment("<b>[red]\x1b[2J", 2, 1_767_225_600_000, 1_767_225_600_000, {}, similar_name="ranker-v2")
_UNDECLARED = replace(SUMMARY, undeclared=(_NEW, _ODD), unnamed_undeclared_responses=12)


class TestUndeclaredExperiments:
    """Experiments that the configuration does not declare, in all outputs."""

    def test_the_json_has_variants_shares_and_times(self) -> None:
        """The object of `status --json`, and of /api/experiments."""
        content = _UNDECLARED.to_json()
        assert content["undeclared"][0] == {
            "name": "new ranker",
            "responses": 1_003,
            "first_at": "2026-01-01T00:00:00.000Z",
            "last_at": "2026-01-01T00:01:00.500Z",
            "variants": {
                "control": {"responses": 600, "share": 600 / 1_003},
                "treatment": {"responses": 400, "share": 400 / 1_003},
            },
            "other_variant_responses": 3,
            "similar_name": None,
        }
        assert content["undeclared"][1]["similar_name"] == "ranker-v2"
        assert content["unnamed_undeclared_responses"] == 12
        assert SUMMARY.to_json()["undeclared"] == []

    def test_their_number_and_their_responses_are_metrics(self) -> None:
        """A name is a label, so the number of names is limited in the store."""
        lines = _scrape(_UNDECLARED)
        assert "abmonitor_undeclared_experiments 2.0" in lines
        assert 'abmonitor_undeclared_experiment_responses_total{experiment="new ranker"} 1003.0' in lines
        assert "abmonitor_undeclared_experiments 0.0" in _scrape(SUMMARY)

    def test_status_prints_variants_and_the_next_step(self) -> None:
        """Names are text: neither markup nor control characters have an effect."""
        out = io.StringIO()
        Console(file=out, width=400).print(render_summary(_UNDECLARED, now_ms=SUMMARY.as_of_ms))
        text = out.getvalue().replace("\u202f", " ")
        assert "control 59.8 %, treatment 39.9 %, others 0.3 %" in text
        assert "<b>[red]\\u001b[2J (did you mean ranker-v2?)" in text
        assert "ab-monitor experiments adopt 'new ranker' --config FILE" in text
        assert "12 responses of experiments that are not recorded by name" in text
        assert "\x1b[2J" not in text

    def test_the_page_has_a_section_apart_from_the_declared_experiments(self) -> None:
        """Only if there are undeclared experiments."""
        page = render_list(_UNDECLARED)
        assert page.index(">ranker-v2</a>") < page.index("<h2>Not declared</h2>")
        assert "&lt;b&gt;[red]\\u001b[2J (did you mean ranker-v2?)" in page
        assert "<h2>Not declared</h2>" not in render_list(SUMMARY)

    def test_the_table_is_short_and_the_rest_is_counted(self) -> None:
        """Anybody may write new names."""
        variants = {f"v{number}": 10 for number in range(10)}
        many = tuple(replace(_NEW, name=f"e{number}", variants=variants) for number in range(30))
        summary = replace(SUMMARY, undeclared=many)
        rows = undeclared_rows(summary)
        assert len(rows) == 20
        assert rows[0][2].replace("\u202f", " ").endswith("v5 9.7 %, others 41.7 %")
        assert undeclared_notes(summary)[0].replace("\u202f", " ") == (
            "And 10 more experiments: /api/experiments lists all."
        )
        assert undeclared_notes(replace(SUMMARY, undeclared=(_ODD,)))[0].endswith("adopt NAME --config FILE`.")


class TestVerdicts:
    """Verdicts as metrics, JSON and text."""

    def test_every_verdict_state_has_a_series(self) -> None:
        """1 for the current state, 0 for all other states."""
        lines = [line for line in _scrape(_analyzed_summary()) if line.startswith("abmonitor_verdict{")]
        states = {re.search(r'state="(\w+)"', line)[1]: line[-3:] for line in lines}  # type: ignore[index]
        assert set(states) == set(get_args(VerdictState))
        assert [state for state, value in states.items() if value == "1.0"] == ["ship"]

    def test_effects_and_bounds_are_exported_for_both_estimands(self) -> None:
        """The exported numbers equal those of the comparison."""
        lines = _scrape(_analyzed_summary())
        analysis = _analyzed_summary().experiments["ranker"].analysis
        assert analysis is not None
        for estimand, comparison in analysis.comparisons["treatment"]["dcg@5"].items():
            labels = f'{{estimand="{estimand}",experiment="ranker",metric="dcg@5",variant="treatment"}}'
            assert f"abmonitor_effect{labels} {comparison.difference.effect}" in lines
            assert f"abmonitor_effect_lower{labels} {comparison.lower}" in lines
            assert f"abmonitor_effect_upper{labels} {comparison.upper}" in lines
        assert f'abmonitor_sample_ratio_log_e{{experiment="ranker"}} {analysis.sample_ratio.log_e}' in lines
        crossovers = analysis.verdicts["treatment"].evidence.crossovers
        assert f'abmonitor_crossover_students{{experiment="ranker"}} {crossovers}.0' in lines
        assert any(line.startswith("abmonitor_days_to_resolve{") for line in lines)

    def test_effects_and_bounds_have_no_sample_before_the_first_window_ends(self) -> None:
        """No closed effect, no bounds, no days to resolve."""
        lines = _scrape(_analyzed_summary(at_days=3))
        assert not [line for line in lines if 'estimand="closed"' in line or "days_to_resolve" in line]
        assert [line for line in lines if line.startswith("abmonitor_effect{")]
        assert not [
            line for line in lines if line.startswith(("abmonitor_guardrail_least", "abmonitor_guardrail_most"))
        ]

    def test_reasons_and_notes_are_exported_by_code(self) -> None:
        """1 for a reason, 0 for a note; a code that is both is exported once, as a reason."""
        summary = _analyzed_summary()
        analysis = summary.experiments["ranker"].analysis
        assert analysis is not None
        verdict = analysis.verdicts["treatment"]
        notes = Reason("better", "also noted"), Reason("metrics_disagree", "noted")
        verdict_with_notes = replace(verdict, notes=notes, reasons=(*verdict.reasons, *verdict.reasons))
        experiment = replace(
            summary.experiments["ranker"], analysis=replace(analysis, verdicts={"treatment": verdict_with_notes})
        )
        lines = [line for line in _scrape(replace(summary, experiments={"ranker": experiment})) if "_reason{" in line]
        assert sorted((re.search(r'reason="(\w+)"', line)[1], line[-3:]) for line in lines) == [  # type: ignore[index]
            ("better", "1.0"),
            ("guardrail_held", "1.0"),
            ("metrics_disagree", "0.0"),
        ]

    def test_every_reason_code_is_documented(self) -> None:
        """Boards show codes; docs/statistics.md explains every code."""
        (section,) = re.findall(r"\n## Reasons\n(.*?)\n## ", (ROOT / "docs/statistics.md").read_text(), re.DOTALL)
        names = [line.partition(":")[0] for line in section.splitlines() if line.startswith("- `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(names))) == sorted(get_args(ReasonCode))

    def test_bounds_and_margin_of_guardrails_are_exported(self) -> None:
        """The exported numbers equal those of the verdict; undefined bounds have no sample."""
        lines = _scrape(_analyzed_summary())
        analysis = _analyzed_summary().experiments["ranker"].analysis
        assert analysis is not None
        (result,) = analysis.verdicts["treatment"].guardrails
        labels = '{experiment="ranker",guardrail="rated_share",variant="treatment"}'
        assert f"abmonitor_guardrail_least_harm{labels} {result.least_harm}" in lines
        assert f"abmonitor_guardrail_most_harm{labels} {result.most_harm}" in lines
        assert f"abmonitor_guardrail_margin{labels} {result.guardrail.margin}" in lines
        lines_without_bounds = _scrape(_analyzed_summary(at_days=3))
        assert [line.partition("{")[0] for line in lines_without_bounds if "_guardrail_" in line] == [
            "abmonitor_guardrail_margin"
        ]

    def test_effects_over_few_students_have_no_sample(self) -> None:
        """The verdict is exported regardless, because the decision rule has a minimum of students."""
        lines = _scrape(_analyzed_summary(), min_students=121)
        assert not [line for line in lines if line.startswith(("abmonitor_effect", "abmonitor_guardrail"))]
        assert [line for line in lines if line.startswith("abmonitor_verdict")]

    def test_a_rendered_verdict_fits_eighty_columns(self) -> None:
        """With state, reasons, guardrails and crossovers."""
        out = io.StringIO()
        experiment = _analyzed_summary().experiments["ranker"]
        Console(file=out, width=80).print(render_verdicts(experiment, {"treatment": ()}, ["On Tuesday it fell."]))
        text = out.getvalue()
        assert text.splitlines()[1].strip() == "On Tuesday it fell."
        assert re.search(r"^treatment – Ship: \+\d+\.\d % \(\+\d+\.\d % to \+\d+\.\d %\)$", text, re.MULTILINE)
        words = " ".join(text.split()).replace("\u202f", "")
        assert "Reason: dcg@5 is better: the whole interval is above 0." in words
        assert re.search(r"percentage points; the allowed decrease is 5\.0+, so the guardrail holds\.", words)
        assert "Students with more than one variant: 0 of 800" in words
        assert "State in JSON and metrics: ship" in words
        assert max(map(len, text.splitlines())) <= 80

    def test_every_verdict_state_has_a_description_and_an_exit_code(self) -> None:
        """0: may be released; 10: wait; 20: must not be released."""
        assert set(STATE_TITLES) == set(STATE_DESCRIPTIONS) == set(VERDICT_EXIT_CODES) == set(get_args(VerdictState))

    def test_an_experiment_named_like_a_path_is_served(self) -> None:
        """An experiment named a/verdict is served at a/verdict, and the verdict at a/verdict/verdict."""
        experiment = _analyzed_summary().experiments["ranker"]
        summary = replace(
            _analyzed_summary(), experiments={"a/verdict": replace(experiment, name="a/verdict"), "b": experiment}
        )

        def read_json(path: str) -> dict[str, Any]:
            return experiment_json(summary, path, lambda _experiment: {}) or {}

        assert "variants" in read_json("a/verdict")
        assert read_json("a/verdict/verdict")["experiment"] == "a/verdict"
        assert read_json("a") == {}

    def test_significant_subgroup_effects_are_footnotes(self) -> None:
        """The command `verdict` also names the subgroups without a significant effect, in one line."""
        analysis = analyze(
            SUBGROUP_EXPERIMENT, sum_students(SUBGROUP_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT), time_after_days(14)
        )
        variants = {"treatment": CONTROL, "control": CONTROL}
        experiment = ExperimentSummary("ranker", "control", "dcg@5", 2, variants, analysis, (DCG,))
        subgroup_footnotes = [
            footnote for footnote in experiment_footnotes(experiment, 0) if footnote.startswith("treatment, ")
        ]
        assert len(subgroup_footnotes) == 2
        assert subgroup_footnotes[0].startswith("treatment, first question in category fractions: effect on dcg@5 +")
        assert subgroup_footnotes[1].startswith("treatment, days since the first response: 0: effect on dcg@5 +")
        out = io.StringIO()
        Console(file=out, width=200).print(render_verdicts(experiment, {"treatment": ()}))
        assert re.search(
            r"First question in category [^:]*geometry[^:]*: no difference shown, given the number of groups",
            out.getvalue(),
        )
        assert out.getvalue().count("no difference shown") == 1
        assert re.search(r"Days since the first response: 0: .*; difference shown", out.getvalue())

    def test_the_page_and_the_json_have_the_history_of_the_verdict(self) -> None:
        """When the state was reached, and when a decision to ship was withdrawn."""
        summary = _analyzed_summary()
        periods = (
            StatePeriod("ship", 0, HOUR_MS, (0.2, 0.1, 0.3)),
            StatePeriod("continue", HOUR_MS, 2 * HOUR_MS, (0.1, -0.1, 0.2)),
            StatePeriod("ship", 2 * HOUR_MS, None, (0.2, 0.1, 0.3)),
        )
        history = {"treatment": periods}
        states: tuple[VerdictState, ...] = "ship", "continue", "ship"
        effect = 0.2, 0.1, 0.3
        snapshots = {
            hour: ExperimentSnapshot("dcg@5", 0, {}, {"treatment": TreatmentSnapshot(state, effect, effect)})
            for hour, state in enumerate(states)
        }
        page = re.sub("</?time.*?>", "", render_experiment(summary, snapshots=snapshots))
        rows = re.findall(r'<th scope="row">1 Jan 1970, (0[0-2]):00 UTC</th><td>([A-Za-z ]+)</td>', page)
        assert rows == [("02", "Ship"), ("01", "Keep running"), ("00", "Ship")]
        assert re.search(
            r"too large on average: \+0\.20 at the first Ship; shrunken towards 0, it is now \+0\.\d+\.", page
        )
        for path in ("ranker", "ranker/verdict"):
            content = experiment_json(summary, path, lambda _experiment: history)
            assert content is not None
            assert [period["state"] for period in content["history"]["treatment"]] == ["ship", "continue", "ship"]
            assert content["headline"]["treatment"]["title"] == "Ship"

    def test_status_json_contains_the_verdict_json(self) -> None:
        """`verdict --json` has the same values without the counts."""
        status = _analyzed_summary().to_json()["experiments"]["ranker"]
        verdict = _analyzed_summary().verdict_json("ranker")
        for key in ("judged_at", "comparisons", "sample_ratio", "crossovers", "guardrails", "verdict"):
            assert status[key] == verdict[key]
        assert (verdict["experiment"], verdict["crossovers"]) == ("ranker", 2)

    def test_the_verdict_json_can_be_limited_to_a_treatment(self) -> None:
        """The sample ratio stays, because the test is about all variants."""
        shares = {"control": 0.4, "treatment": 0.3, "other": 0.3}
        experiment = replace(SENSITIVE_EXPERIMENT, variants=shares)
        analysis = analyze(experiment, sum_students(experiment, STUDENTS_WITH_EFFECT), time_after_days(14))
        summary = replace(
            _analyzed_summary(),
            experiments={"e": replace(_analyzed_summary().experiments["ranker"], analysis=analysis)},
        )
        all_verdicts, single_verdict = summary.verdict_json("e"), summary.verdict_json("e", "other")
        for key in ("comparisons", "guardrails", "verdict"):
            assert single_verdict[key] == {"other": all_verdicts[key]["other"]}
        assert single_verdict["sample_ratio"] == all_verdicts["sample_ratio"]


class TestTable:
    """The table of an experiment in a terminal."""

    def test_the_control_comes_first_and_differences_are_relative_to_it(self) -> None:
        """In any order of the configuration."""
        better = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, mean=2.2336875)})
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"treatment": better, "control": CONTROL})
        (row,) = [row for row in experiment_table_rows(experiment, 0) if row.label == "All time"]
        assert row.values == ("2.0306", "2.2337")
        assert row.details[1].startswith("+10.0")
        assert row.primary

    def test_a_table_of_two_variants_fits_eighty_columns(self) -> None:
        """Two variants side by side, without wrapping; an empty variant shows dashes."""
        out = io.StringIO()
        Console(file=out, width=80, force_terminal=True, color_system=None).print(
            render_summary(SUMMARY, now_ms=1_767_225_720_500)
        )
        text = out.getvalue()
        assert "Last days (24 h half-life)" in text
        assert "–" in text
        assert "3 responses have no user id" in text
        classes = replace(SUMMARY.experiments["ranker-v2"], unit_id_name="class_id")
        assert "3 responses have no class_id" in experiment_footnotes(classes, 1_767_225_720_500)[0]
        assert max(map(len, text.splitlines())) <= 80

    def test_means_over_all_responses_have_a_row_if_some_are_unrated(self) -> None:
        """If feedback is always positive, all rated responses have the same success."""
        metric = structs.replace(METRIC, mean=1.0, mean_over_all=0.651)
        experiment = replace(
            SUMMARY.experiments["ranker-v2"],
            variants={"control": replace(CONTROL, metrics={"success@5": metric})},
            metric_specs=(MetricSpec("success@5", "success", 5),),
        )
        out = io.StringIO()
        summary = replace(SUMMARY, experiments={"ranker-v2": experiment})
        Console(file=out, width=120).print(render_summary(summary, now_ms=1_767_225_720_500))
        (line,) = [line for line in out.getvalue().splitlines() if "Over all responses" in line]
        assert "0.6510" in line

    def test_in_a_narrow_terminal_the_details_of_the_control_are_omitted_first(self) -> None:
        """The differences of treatments are the purpose of the table."""
        treatment = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, mean=2.2336875)})
        variants = {"control": CONTROL, "treatment": treatment}
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants=variants)
        out = io.StringIO()
        table = render_summary(replace(SUMMARY, experiments={"ranker-v2": experiment}), now_ms=1_767_225_720_500)
        Console(file=out, width=80).print(table)
        (line,) = [line for line in out.getvalue().splitlines() if "All time" in line]
        assert "+10.0" in line
        assert line.count("n = ") == 1

    @pytest.mark.parametrize("width", [60, 80, 250])
    def test_no_number_is_truncated_at_any_width(self, width: int) -> None:
        """A narrow terminal omits details, and then prints a table per treatment beside the control."""
        summary = replace(SUMMARY.experiments["ranker-v2"], variants=dict.fromkeys(("control", *"abcd"), CONTROL))
        out = io.StringIO()
        table = render_summary(replace(SUMMARY, experiments={"ranker-v2": summary}), now_ms=1_767_225_720_500)
        Console(file=out, width=width).print(table)
        text = out.getvalue()
        assert "…" not in text
        narrow = width < 250
        assert len(re.findall(r"\bcontrol\b(?=.*\b[a-d]\b)", text)) == (4 if narrow else 1)
        for row in experiment_table_rows(summary, 1_767_225_720_500):
            assert text.count(row.values[1]) >= 4
            assert narrow or all(detail in text for detail in row.details)

    def test_there_is_no_relative_difference_from_a_control_displayed_as_zero(self) -> None:
        """The percentage would be in the millions."""
        zero, better = structs.replace(METRIC, mean=1e-9), structs.replace(METRIC, mean=0.2)
        control, treatment = (replace(CONTROL, metrics={"dcg@5": metric}) for metric in (zero, better))
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": control, "treatment": treatment})
        (row,) = [row for row in experiment_table_rows(experiment, 0) if row.label == "All time"]
        assert "%" not in row.details[1]

    def test_a_relative_difference_needs_a_hundred_responses_in_both_variants(self) -> None:
        """With fewer, readers would take chance for an effect."""
        for count, is_shown in ((99, False), (100, True)):
            better = structs.replace(METRIC, mean=2.2336875, count=count)
            variants = {"control": CONTROL, "treatment": replace(CONTROL, metrics={"dcg@5": better})}
            experiment = replace(SUMMARY.experiments["ranker-v2"], variants=variants)
            (row,) = [row for row in experiment_table_rows(experiment, 0) if row.label == "All time"]
            assert ("+10.0" in row.details[1]) == is_shown

    @pytest.mark.parametrize(
        ("decay", "label"),
        [
            ("10m", "Last minutes (10 min half-life)"),
            ("1h", "Last hours (1 h half-life)"),
            ("24h", "Last days (24 h half-life)"),
            ("7d", "Last weeks (7 d half-life)"),
            ("90d", "Last months (90 d half-life)"),
            ("reciprocal-10d", "Last 10 days (weight 1/(1 + age in days))"),
        ],
    )
    def test_decays_have_labels_for_readers(self, decay: str, label: str) -> None:
        """The period says what the mean is about; the half-life is that of the configuration."""
        assert decay_label(decay) == label

    def test_a_time_ahead_of_the_clock_is_explained(self) -> None:
        """In the table as a time ahead, in a footnote with the causes; a few seconds are a difference of clocks."""
        at_ms = 1_767_225_660_500
        assert format_age(at_ms, at_ms - 3 * 3_600_000) == "3\u202fh ahead of this computer's clock"
        assert format_age(at_ms, at_ms - 4_000) == "0\u202fs ago"
        assert format_time_with_age(at_ms, at_ms + 150_000) == "1 Jan 2026, 00:01 UTC (2\u202fmin ago)"
        experiment = SUMMARY.experiments["ranker-v2"]
        newest_ms = max(variant.last_event_at_ms or 0 for variant in experiment.variants.values())
        (row,) = [
            row for row in experiment_table_rows(experiment, newest_ms - 7_200_000) if row.label == "Newest event"
        ]
        assert "2\u202fh ahead" in row.values
        footnotes = experiment_footnotes(experiment, newest_ms - 7_200_000)
        assert footnotes[0].startswith("The newest event is 2\u202fh ahead of this computer's clock.")
        assert "ahead" not in " ".join(experiment_footnotes(experiment, newest_ms))

    def test_the_head_names_the_newest_event_a_past_time_or_that_there_is_no_event(self) -> None:
        """A time of results is not called the time of an event."""
        newest_ms = max(
            variant.last_event_at_ms or 0
            for experiment in SUMMARY.experiments.values()
            for variant in experiment.variants.values()
        )
        assert describe_as_of(replace(SUMMARY, as_of_ms=newest_ms), newest_ms).startswith("Newest event: ")
        assert describe_as_of(replace(SUMMARY, as_of_ms=newest_ms - 1), newest_ms).startswith("As of ")
        empty = replace(SUMMARY, experiments={})
        assert describe_as_of(empty, newest_ms) == "No event of a declared experiment yet"

    def test_feedback_is_labelled_by_its_kind(self) -> None:
        """The kind is configuration, so the label is built from the kind."""
        variant = replace(CONTROL, responses=10, responses_with_feedback={"escalated": 2, "k" * 60: 1})
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": variant})
        rows = [row for row in experiment_table_rows(experiment, 0) if row.group == "feedback"]
        assert rows[0].label == "Share of responses with feedback 'escalated'"
        assert (rows[0].values, rows[0].details) == (("20.0\u202f%",), ("n = 2",))
        assert rows[1].label == f"Share of responses with feedback '{'k' * 39}…'"
        out = io.StringIO()
        Console(file=out, width=80).print(render_summary(replace(SUMMARY, experiments={"e": experiment}), now_ms=0))
        assert "Share of responses with feedback  " in out.getvalue()
        assert "\n   'escalated' " in out.getvalue()

    def test_ages_and_percentages_are_formatted_for_readers(self) -> None:
        """None is "never" for an age, and a dash for a percentage."""
        assert [format_age(at_ms, 10**9) for at_ms in (None, 10**9, 10**9 - 150_000)] == [
            "never",
            "0\u202fs ago",
            "2\u202fmin ago",
        ]
        assert (format_percent(None), format_percent(0.4)) == ("–", "40.0\u202f%")


class TestUnmatchedFeedback:
    """Feedback that expired before its response arrived."""

    SUMMARY = replace(SUMMARY, unmatched_feedback={"<b>": 0, "helpful": 12, "rating": 1234})

    def test_unmatched_feedback_is_exported_by_kind(self) -> None:
        """Configured kinds are exported with 0, because Prometheus sees no increase in a series that begins above 0."""
        assert self.SUMMARY.to_json()["unmatched_feedback"] == {"<b>": 0, "helpful": 12, "rating": 1234}
        lines = [line for line in _scrape(self.SUMMARY) if "unmatched" in line]
        assert lines == [
            f'abmonitor_unmatched_feedback_total{{kind="{kind}"}} {count}'
            for kind, count in (("<b>", 0.0), ("helpful", 12.0), ("rating", 1234.0))
        ]

    def test_unmatched_feedback_is_a_line_in_terminal_and_page(self) -> None:
        """The most frequent kind comes first; the page escapes kinds."""
        line = "Feedback without a response: rating 1\u202f234, helpful 12."
        out = io.StringIO()
        Console(file=out, width=100).print(render_summary(self.SUMMARY, now_ms=0))
        assert line in out.getvalue()
        assert line in render_service(self.SUMMARY)
        summary = replace(SUMMARY, unmatched_feedback={"<b>": 3})
        assert "Feedback without a response: &lt;b&gt; 3." in render_service(summary)

    def test_without_unmatched_feedback_there_is_no_line(self) -> None:
        """Kinds with a count of 0 are omitted."""
        summary = replace(SUMMARY, unmatched_feedback={"rating": 0})
        out = io.StringIO()
        Console(file=out, width=100).print(render_summary(summary, now_ms=0))
        assert "without a response" not in out.getvalue()
        assert "without a response" not in render_service(summary)


class TestAttention:
    """The review order of categories."""

    def test_categories_for_review_are_in_json_metrics_and_page(self) -> None:
        """Without counted items all three omit the review order."""
        entry = TriageEntry(
            "<algebra>", bad_answers_today=6, bad_answers=60, responses=1200, history=0.5, urgency=0.7, priority=0.039
        )
        experiment = replace(SUMMARY.experiments["ranker-v2"], categories_for_review=(entry,))
        summary = replace(SUMMARY, experiments={"ranker-v2": experiment})
        assert experiment.to_json()["attention"] == [entry.to_json()]
        assert "attention" not in SUMMARY.experiments["ranker-v2"].to_json()
        lines = _scrape(summary)
        assert 'abmonitor_attention_bad_answers{category="<algebra>",experiment="ranker-v2"} 6.0' in lines
        (line,) = [line for line in lines if line.startswith("abmonitor_attention_priority")]
        assert float(line.split()[-1]) == 0.039
        page = render_experiment(summary)
        assert '<th scope="row">&lt;algebra&gt;</th><td>6</td><td>5.0\u202f%</td><td>1\u202f200</td>' in page
        assert "Categories that need review" not in render_experiment(SUMMARY)
