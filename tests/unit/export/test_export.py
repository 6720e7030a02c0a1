"""What is shown, and what is left out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from monitor.analysis import Entry
from monitor.analysis.summary import (
    DecayedMean,
    ExperimentSummary,
    MetricSummary,
    Summary,
    TrafficSummary,
    VariantSummary,
)
from monitor.config import DisplaySettings
from monitor.errors import StoreUnavailable
from monitor.export import CATALOGUE, EXIT_CODES, ExperimentsCollector, render, render_verdicts
from monitor.export.presentation import MEANINGS, age, decisions, notes, rows, share
from monitor.metrics.traffic import LATENCY_BOUNDS_MS, TrafficCounts
from monitor.stats import State
from monitor.stats.decision import Code, Reason
from monitor.web.pages import page_context, template
from monitor.web.routes import experiment_json
from tests.support.units import judge
from tests.unit.analysis.test_verdicts import BETTER, PARTED, SENSITIVE, UNLIKE, after, stored

ROOT = Path(__file__).parents[3]
ABSENT = DecayedMean(None, None, None, None, None)
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
NOTHING = VariantSummary(
    0, 0, 0, 0, {}, {}, None, None, {"dcg@5": MetricSummary(0, 0, 0.0, None, None, None, {"24h": ABSENT})}
)
SUMMARY = Summary(
    as_of_ms=1_767_225_660_500,
    experiments={
        "ranker-v2": ExperimentSummary("ranker-v2", "control", "dcg@5", 2, {"treatment": NOTHING, "control": CONTROL})
    },
)


def _exposed(summary: Summary, least: int = 1) -> list[str]:
    return _samples(ExperimentsCollector(lambda: summary, least))


def _samples(collector: ExperimentsCollector) -> list[str]:
    encode, _ = choose_encoder("")
    return [line for line in encode(collector).decode().splitlines() if not line.startswith("#")]


class TestJson:
    """The object of `status --json`."""

    def test_has_the_documented_shape(self) -> None:
        """Numbers are numbers, absent statistics are null, times are ISO with milliseconds."""
        found = SUMMARY.to_json()
        assert found["as_of"] == "2026-01-01T00:01:00.500Z"
        control = found["experiments"]["ranker-v2"]["variants"]["control"]
        assert (control["responses"], control["feedback"]) == (1000, {"rating": 640, "escalated": 31})
        assert control["last_response_at"] == "2026-01-01T00:00:00.000Z"
        assert control["metrics"]["dcg@5"]["decayed"]["24h"]["effective_count"] == 212.4
        treatment = found["experiments"]["ranker-v2"]["variants"]["treatment"]
        assert treatment["last_response_at"] is None
        assert treatment["metrics"]["dcg@5"]["mean"] is None


class TestCollector:
    """Families made at scrape time."""

    def test_what_is_undefined_is_absent_and_counts_are_there_from_the_start(self) -> None:
        """A variant without events has responses 0 and no mean."""
        lines = _exposed(SUMMARY)
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
        assert 'abmonitor_experiment_info{control="control",experiment="ranker-v2",primary="dcg@5"} 1.0' in lines
        assert "abmonitor_store_up 1.0" in lines

    def test_the_all_time_mean_has_a_standard_error_where_it_is_known(self) -> None:
        """By hand: √(1.9/400 · 1.44) = 0.0827; a design effect that is not known could be any."""
        known = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, design_effect=1.44)})
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": known})
        lines = _exposed(replace(SUMMARY, experiments={"ranker-v2": experiment}))
        name = 'abmonitor_metric_standard_error{decay="none"'
        (line,) = [line for line in lines if line.startswith(name)]
        assert abs(float(line.split()[-1]) - 0.0827043) < 1e-6
        assert not [line for line in _exposed(SUMMARY) if line.startswith(name)]

    def test_means_on_few_students_are_absent(self) -> None:
        """min_display_students hides the metrics, not the counts."""
        lines = _exposed(SUMMARY, least=121)
        assert not [line for line in lines if line.startswith("abmonitor_metric")]
        assert 'abmonitor_students{experiment="ranker-v2",variant="control"} 120.0' in lines

    def test_names_of_any_kind_are_escaped(self) -> None:
        """Quotes and backslashes in a name stay in their label."""
        odd = replace(SUMMARY.experiments["ranker-v2"], name='a"b\\c')
        assert any('experiment="a\\"b\\\\c"' in line for line in _exposed(replace(SUMMARY, experiments={"x": odd})))

    def test_without_the_store_only_its_absence_is_said(self) -> None:
        """A scrape answers also then."""

        def gone() -> Summary:
            raise StoreUnavailable("no store")

        assert _samples(ExperimentsCollector(gone, 1)) == ["abmonitor_store_up 0.0"]

    @pytest.mark.parametrize(
        ("accept", "parse"),
        [("", text_string_to_metric_families), ("application/openmetrics-text;version=1.0.0", openmetrics_families)],
    )
    def test_every_family_can_be_read_back(self, accept: str, parse: Callable[[str], Iterable[Metric]]) -> None:
        """In both formats, with a histogram, with information, and with odd names of experiments and variants."""
        odd = 'a "name"\\with\n{everything}, ü'
        flow = TrafficCounts(12_345_678, 3, 9_876_543_210, tuple(range(len(LATENCY_BOUNDS_MS) + 1)))
        known = replace(CONTROL, traffic=TrafficSummary(flow, flow, 0, 1))
        judged = _judged().experiments["ranker"]
        experiment = replace(judged, variants={"control": known, "treatment": CONTROL, odd: NOTHING})
        collector = ExperimentsCollector(
            lambda: Summary(0, {"ranker": experiment, odd: replace(experiment, name=odd)}), 1
        )
        encode, _ = choose_encoder(accept)

        def samples(families: Iterable[Metric]) -> list[tuple[str, list[tuple[str, str]], float]]:
            return sorted(
                (each.name, sorted(each.labels.items()), float(each.value)) for own in families for each in own.samples
            )

        found = samples(parse(encode(collector).decode()))
        assert found == samples(collector.collect())
        latencies = [each for each in found if each[0] == "abmonitor_response_latency_seconds_sum"]
        arm = [("experiment", odd), ("variant", "control")]
        assert ("abmonitor_response_latency_seconds_sum", arm, 9_876_543.21) in latencies
        labels = [("control", "control"), ("experiment", odd), ("primary", "dcg@5")]
        assert ("abmonitor_experiment_info", labels, 1.0) in found


def _judged(at_days: float = 14.0) -> Summary:
    """Return a summary of two variants, the second one better."""
    judgement = judge(SENSITIVE, stored(SENSITIVE, BETTER), after(at_days))
    variants = {"treatment": CONTROL, "control": CONTROL}
    experiment = ExperimentSummary("ranker", "control", "dcg@5", 2, variants, judgement)
    return Summary(as_of_ms=judgement.at_ms, experiments={"ranker": experiment})


class TestCatalogue:
    """Every metric of both endpoints."""

    def test_every_metric_is_documented(self) -> None:
        """docs/http.md names each, with its labels."""
        rows = [line for line in (ROOT / "docs/http.md").read_text().splitlines() if line.startswith("| `abmonitor_")]
        for metric in CATALOGUE:
            named = [row for row in rows if f"`{metric.name}`" in row]
            assert any("the same" in row or all(label in row for label in metric.labels) for row in named), metric.name


class TestVerdicts:
    """What is said about variants, for machines and people."""

    def test_every_state_is_a_series(self) -> None:
        """1 for the one that applies, 0 for the others."""
        lines = [line for line in _exposed(_judged()) if line.startswith("abmonitor_verdict{")]
        states = {re.search(r'state="(\w+)"', line)[1]: line[-3:] for line in lines}  # type: ignore[index]
        assert set(states) == set(get_args(State))
        assert [state for state, value in states.items() if value == "1.0"] == ["ship"]

    def test_effects_have_their_bounds_for_both_estimands(self) -> None:
        """The numbers are those of the comparison."""
        lines = _exposed(_judged())
        judgement = _judged().experiments["ranker"].judgement
        assert judgement is not None
        for estimand, each in judgement.comparisons["treatment"]["dcg@5"].items():
            labels = f'{{estimand="{estimand}",experiment="ranker",metric="dcg@5",variant="treatment"}}'
            assert f"abmonitor_effect{labels} {each.difference.effect}" in lines
            assert f"abmonitor_effect_lower{labels} {each.lower}" in lines
            assert f"abmonitor_effect_upper{labels} {each.upper}" in lines
        assert f'abmonitor_sample_ratio_log_e{{experiment="ranker"}} {judgement.sample_ratio.log_e}' in lines
        assert 'abmonitor_crossover_students{experiment="ranker"} 2.0' in lines
        assert any(line.startswith("abmonitor_days_to_resolve{") for line in lines)

    def test_what_is_undefined_is_absent(self) -> None:
        """Nobody's window is over yet: no closed effect, no bounds, no days."""
        lines = _exposed(_judged(at_days=3))
        assert not [line for line in lines if 'estimand="closed"' in line or "days_to_resolve" in line]
        assert [line for line in lines if line.startswith("abmonitor_effect{")]
        assert not [
            line for line in lines if line.startswith(("abmonitor_guardrail_least", "abmonitor_guardrail_most"))
        ]

    def test_reasons_are_series_of_their_codes(self) -> None:
        """1 for what the verdict rests on, 0 for a note; a code that is both is a reason, and none stands twice."""
        judged = _judged()
        judgement = judged.experiments["ranker"].judgement
        assert judgement is not None
        verdict = judgement.verdicts["treatment"]
        both = Reason("better", "also noted"), Reason("metrics_disagree", "noted")
        other = replace(verdict, notes=both, reasons=(*verdict.reasons, *verdict.reasons))
        experiment = replace(judged.experiments["ranker"], judgement=replace(judgement, verdicts={"treatment": other}))
        lines = [line for line in _exposed(replace(judged, experiments={"ranker": experiment})) if "_reason{" in line]
        assert sorted((re.search(r'reason="(\w+)"', line)[1], line[-3:]) for line in lines) == [  # type: ignore[index]
            ("better", "1.0"),
            ("guardrail_held", "1.0"),
            ("metrics_disagree", "0.0"),
        ]

    def test_every_reason_is_documented(self) -> None:
        """The board shows codes; docs/statistics.md says what they mean."""
        (section,) = re.findall(r"\n## Reasons\n(.*?)\n## ", (ROOT / "docs/statistics.md").read_text(), re.DOTALL)
        first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(get_args(Code))

    def test_guardrails_have_their_bounds_and_margin(self) -> None:
        """The numbers are those of the verdict; bounds that are not known are absent."""
        lines = _exposed(_judged())
        judgement = _judged().experiments["ranker"].judgement
        assert judgement is not None
        (rail,) = judgement.verdicts["treatment"].guardrails
        labels = '{experiment="ranker",guardrail="rated_share",variant="treatment"}'
        assert f"abmonitor_guardrail_least_harm{labels} {rail.least_harm}" in lines
        assert f"abmonitor_guardrail_most_harm{labels} {rail.most_harm}" in lines
        assert f"abmonitor_guardrail_margin{labels} {rail.guardrail.margin}" in lines
        early = _exposed(_judged(at_days=3))
        assert [line.partition("{")[0] for line in early if "_guardrail_" in line] == ["abmonitor_guardrail_margin"]

    def test_effects_on_few_students_are_absent(self) -> None:
        """The verdict is not: it has its own rule."""
        lines = _exposed(_judged(), least=121)
        assert not [line for line in lines if line.startswith(("abmonitor_effect", "abmonitor_guardrail"))]
        assert [line for line in lines if line.startswith("abmonitor_verdict")]

    def test_says_state_reasons_and_numbers_in_eighty_columns(self) -> None:
        """For a terminal."""
        out = io.StringIO()
        Console(file=out, width=80).print(render_verdicts(_judged().experiments["ranker"]))
        text = out.getvalue()
        assert "treatment: ship" in text
        assert "because dcg@5: the effect is between" in text
        assert "guardrail rated_share: held" in text
        assert "% of responses, tolerable is +" in " ".join(text.split())
        assert "crossovers: 0 of 800" in text.replace("\u202f", "")
        assert max(map(len, text.splitlines())) <= 80

    def test_every_state_has_a_sentence_and_an_exit_code(self) -> None:
        """0 may go out, 10 wait, 20 may not."""
        assert set(MEANINGS) == set(EXIT_CODES) == set(get_args(State))

    def test_an_experiment_whose_name_ends_like_a_path_is_found(self) -> None:
        """Its own object, and its verdict one step further."""
        found = _judged().experiments["ranker"]
        odd = replace(_judged(), experiments={"a/verdict": replace(found, name="a/verdict"), "b": found})
        assert "variants" in (experiment_json(odd, "a/verdict") or {})
        assert (experiment_json(odd, "a/verdict/verdict") or {})["experiment"] == "a/verdict"
        assert experiment_json(odd, "a") is None

    def test_what_is_shown_within_parts_is_a_note(self) -> None:
        """Of all segments and ages only those that are discovered; the command names the others, too."""
        judgement = judge(PARTED, stored(PARTED, UNLIKE), after(14))
        variants = {"treatment": CONTROL, "control": CONTROL}
        experiment = ExperimentSummary("ranker", "control", "dcg@5", 2, variants, judgement)
        said = [note for note in notes(experiment) if note.startswith("treatment, ")]
        assert len(said) == 2
        assert said[0].startswith("treatment, first question in fractions: dcg@5 +")
        assert said[1].startswith("treatment, days since the first answer: 0: dcg@5 +")
        out = io.StringIO()
        Console(file=out, width=120).print(render_verdicts(experiment))
        assert re.search(r"first question in geometry: .*; not shown", out.getvalue())
        assert re.search(r"days since first answer 0: .*; shown", out.getvalue())

    def test_status_and_page_say_the_state_in_a_sentence(self) -> None:
        """Above what else a reader should know."""
        assert not decisions(_judged().experiments["ranker"], 10**6)[0].reasons
        (decision,) = decisions(_judged().experiments["ranker"])
        assert (decision.tone, decision.sentence.partition(" – ")[0]) == ("good", "treatment: ship")
        assert decision.reasons
        assert "verdict" in notes(SUMMARY.experiments["ranker-v2"])[-1]

    def test_status_has_it_beside_the_counts(self) -> None:
        """And `verdict --json` without them."""
        found = _judged().to_json()["experiments"]["ranker"]
        verdict = _judged().verdict_json("ranker")
        for key in ("judged_at", "comparisons", "sample_ratio", "crossovers", "guardrails", "verdict"):
            assert found[key] == verdict[key]
        assert (verdict["experiment"], verdict["crossovers"]) == ("ranker", 2)

    def test_one_treatment_can_be_asked_for(self) -> None:
        """What is about all of them stays."""
        shares = {"control": 0.4, "treatment": 0.3, "other": 0.3}
        experiment = replace(SENSITIVE, variants=shares)
        judgement = judge(experiment, stored(experiment, BETTER), after(14))
        summary = replace(_judged(), experiments={"e": replace(_judged().experiments["ranker"], judgement=judgement)})
        everything, one = summary.verdict_json("e"), summary.verdict_json("e", "other")
        for key in ("comparisons", "guardrails", "verdict"):
            assert one[key] == {"other": everything[key]["other"]}
        assert one["sample_ratio"] == everything["sample_ratio"]


class TestTable:
    """What people read."""

    def test_the_control_comes_first_and_differences_are_against_it(self) -> None:
        """Whatever the order in the configuration."""
        better = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, mean=2.2336875)})
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"treatment": better, "control": CONTROL})
        (row,) = [row for row in rows(experiment, 0) if row.label == "all time"]
        assert row.values == ("2.0306", "2.2337")
        assert row.details[1].startswith("+10.0")
        assert row.primary

    def test_fits_eighty_columns(self) -> None:
        """Two variants side by side, without wrapping; an empty variant shows dashes."""
        out = io.StringIO()
        Console(file=out, width=80, force_terminal=True, color_system=None).print(
            render(SUMMARY, now_ms=1_767_225_720_500)
        )
        text = out.getvalue()
        assert "decay 24h" in text
        assert "–" in text
        assert "3 responses name no student" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_the_details_of_the_control_are_left_out_first(self) -> None:
        """How a treatment differs is what the table is looked at for."""
        treatment = replace(CONTROL, metrics={"dcg@5": structs.replace(METRIC, mean=2.2336875)})
        variants = {"control": CONTROL, "treatment": treatment}
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants=variants)
        out = io.StringIO()
        shown = render(replace(SUMMARY, experiments={"ranker-v2": experiment}), now_ms=1_767_225_720_500)
        Console(file=out, width=70).print(shown)
        (line,) = [line for line in out.getvalue().splitlines() if "all time" in line]
        assert "+10.0" in line
        assert line.count("n ") == 1

    @pytest.mark.parametrize("width", [60, 80, 250])
    def test_no_number_is_cut(self, width: int) -> None:
        """Where a terminal is too narrow, details are left out; then each treatment has a table with the control."""
        summary = replace(SUMMARY.experiments["ranker-v2"], variants=dict.fromkeys(("control", *"abcd"), CONTROL))
        out = io.StringIO()
        shown = render(replace(SUMMARY, experiments={"ranker-v2": summary}), now_ms=1_767_225_720_500)
        Console(file=out, width=width).print(shown)
        text = out.getvalue()
        assert "…" not in text
        narrow = width < 250
        assert text.count("control (control)") == (4 if narrow else 1)
        for row in rows(summary, 1_767_225_720_500):
            assert text.count(row.values[1]) >= 4
            assert narrow or all(detail in text for detail in row.details)

    def test_no_difference_is_told_from_what_is_shown_as_nothing(self) -> None:
        """It would be millions of per cent."""
        least, better = structs.replace(METRIC, mean=1e-9), structs.replace(METRIC, mean=0.2)
        control, treatment = (replace(CONTROL, metrics={"dcg@5": each}) for each in (least, better))
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": control, "treatment": treatment})
        (row,) = [row for row in rows(experiment, 0) if row.label == "all time"]
        assert "%" not in row.details[1]

    def test_ages_and_shares(self) -> None:
        """Units that a person thinks in."""
        assert [age(at, 10**9) for at in (None, 10**9, 10**9 - 150_000)] == ["never", "0\u202fs ago", "2\u202fmin ago"]
        assert (share(None), share(0.4)) == ("–", "40.0\u202f%")


class TestUnmatchedFeedback:
    """Feedback that expired before its response arrived."""

    SUMMARY = replace(SUMMARY, unmatched_feedback={"<b>": 0, "helpful": 12, "rating": 1234})

    def test_is_in_json_and_metrics_by_kind(self) -> None:
        """A kind of the configuration is there with 0: Prometheus sees no increase in a series that begins above it."""
        assert self.SUMMARY.to_json()["unmatched_feedback"] == {"<b>": 0, "helpful": 12, "rating": 1234}
        lines = [line for line in _exposed(self.SUMMARY) if "unmatched" in line]
        assert lines == [
            f'abmonitor_unmatched_feedback_total{{kind="{kind}"}} {count}'
            for kind, count in (("<b>", 0.0), ("helpful", 12.0), ("rating", 1234.0))
        ]

    def test_is_one_line_for_people_where_there_is_any(self) -> None:
        """In the terminal and on the page, the most frequent kind first; kinds are escaped there."""
        line = "Unmatched feedback: rating 1\u202f234, helpful 12 (no response was stored when they expired)"
        out = io.StringIO()
        Console(file=out, width=100).print(render(self.SUMMARY, now_ms=0))
        assert line in out.getvalue()
        assert line in _page(self.SUMMARY)
        odd = replace(SUMMARY, unmatched_feedback={"<b>": 3})
        assert "Unmatched feedback: &lt;b&gt; 3" in _page(odd)

    def test_says_nothing_where_there_is_none(self) -> None:
        """A kind with 0 is no news."""
        none = replace(SUMMARY, unmatched_feedback={"rating": 0})
        out = io.StringIO()
        Console(file=out, width=100).print(render(none, now_ms=0))
        assert "Unmatched" not in out.getvalue()
        assert "Unmatched" not in _page(none)


class TestAttention:
    """What to look at first, by category."""

    def test_is_in_json_metrics_and_page(self) -> None:
        """Where items are counted; elsewhere nothing is said of it."""
        entry = Entry("<algebra>", today=6, history=0.5, urgency=0.7)
        experiment = replace(SUMMARY.experiments["ranker-v2"], attention=(entry,))
        found = replace(SUMMARY, experiments={"ranker-v2": experiment})
        assert experiment.to_json()["attention"] == [entry.to_json()]
        assert "attention" not in SUMMARY.experiments["ranker-v2"].to_json()
        lines = _exposed(found)
        assert 'abmonitor_attention_bad_answers{category="<algebra>",experiment="ranker-v2"} 6.0' in lines
        (line,) = [line for line in lines if line.startswith("abmonitor_attention_priority")]
        assert float(line.split()[-1]) == pytest.approx(0.668, abs=1e-3)
        assert "&lt;algebra&gt;</th><td>6</td><td>0.668" in _page(found)
        assert "look at first" not in _page(SUMMARY)


def _page(summary: Summary) -> str:
    return template("page.html").render(page_context(summary, (), DisplaySettings(), 0))
