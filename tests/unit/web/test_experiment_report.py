"""The report on an experiment: the verdict, hidden effects, history, escaped names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import groupby
from typing import Any

import msgspec
import pytest

from monitor.analysis import DayEntry, DayLog, DayRemark, VariantDay
from monitor.analysis.interim_history import compute_interim_analyses, compute_student_splits
from monitor.analysis.snapshots import (
    DecayedMeanSnapshot,
    ExperimentSnapshot,
    SnapshotHistory,
    TreatmentSnapshot,
    VariantSnapshot,
)
from monitor.analysis.summary import DecayedMean, ExperimentSummary, MetricSummary, VariantSummary
from monitor.clock import HOUR_MS
from monitor.config import (
    AllocationSettings,
    DisplayText,
    DisplayTexts,
    ExperimentChange,
    ExperimentSettings,
    MetricSpec,
)
from monitor.export import format_optional_mean
from monitor.export.presentation import STATE_TITLES, format_time
from monitor.export.report_data import DecayedMeans, ReportData
from monitor.stats import (
    BackfillProgress,
    CupedAdjustment,
    DataQuality,
    DayBand,
    Estimate,
    EstimatePair,
    ExperimentHistory,
    ResponseQuality,
    VariantComparison,
    VerdictState,
    compare_variants,
    decide_verdict,
)
from monitor.web.chart_specs import Point
from monitor.web.experiment_charts import decayed_mean_point, effect_chart, student_count_chart, student_share_chart
from monitor.web.experiment_report import render_experiment_report
from monitor.web.experiment_view import describe_disagreements
from tests.support.student_groups import (
    FIRST_DAY,
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    STUDENTS_WITH_SEGMENT_EFFECT,
    SUBGROUP_EXPERIMENT,
    StudentGroup,
    make_students,
    sum_students,
    time_after_days,
)
from tests.support.units import analyze

HOUR = FIRST_DAY * 24
VOID = {"meta", "br", "img", "input", "link", "hr"}
INLINE = {"a", "b", "time", "code"}


class Page(HTMLParser):
    """A parsed HTML page: texts, attributes, and whether all elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.texts += [] if tag in INLINE else [" "]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.texts += [] if tag in INLINE else [" "]
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] not in {"style", "title"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """The displayed text, with whitespace collapsed."""
        return re.sub(r"\s+", " ", "".join(self.texts))

    def plots(self) -> list[str]:
        """Return the titles of the charts."""
        return [chart["usermeta"]["title"] for chart in self.charts()]

    def charts(self) -> list[dict[str, Any]]:
        """Return the specifications of the charts."""
        return [json.loads(script) for script in self.scripts if script.startswith("{")]


def _line_values(chart: dict[str, Any], label: str) -> list[float | None]:
    """Return the values of a line of a chart."""
    return [row["v"] for row in chart["datasets"]["rows"] if row["s"] == label]


def _variant(students: int, experiment: ExperimentSettings) -> VariantSummary:
    metrics = {
        metric.name: MetricSummary(
            count=2 * students,
            undefined=0,
            sum=4.0 * students,
            mean=2.0,
            mean_over_all=1.0,
            variance=1.0,
            decayed={decay.name: DecayedMean(2.0, 50.0, 1.0, 90.0, 0.1) for decay in experiment.decay},
            design_effect=2.0,
        )
        for metric in experiment.metrics
    }
    return VariantSummary(4 * students, 2 * students, students, 1, {}, {}, 7, 9, metrics)


def report_data(
    students: Sequence[StudentGroup],
    at_ms: int,
    experiment: ExperimentSettings = SENSITIVE_EXPERIMENT,
    *,
    snapshots: SnapshotHistory | None = None,
    decayed_means: Sequence[DecayedMeans] = (),
    min_students: int = 1,
) -> ReportData:
    """Return the report data of a store with the given students."""
    student_sums = sum_students(experiment, students)
    analysis = analyze(experiment, student_sums, at_ms)
    variants = {
        name: _variant(len([student for student in students if student.variant == name]), experiment)
        for name in experiment.variants
    }
    return ReportData(
        settings=experiment,
        summary=ExperimentSummary(
            experiment.name, experiment.control, experiment.primary, 3, variants, analysis, experiment.metrics
        ),
        as_of_ms=at_ms,
        latest_analysis=analysis,
        interim_analyses=compute_interim_analyses(experiment, student_sums, at_ms),
        daily_splits=compute_student_splits(experiment, student_sums, at_ms),
        decayed_means=tuple(decayed_means),
        snapshots=snapshots or {},
        min_students=min_students,
    )


def _snapshot(state: VerdictState, live: float | None = 0.4) -> ExperimentSnapshot:
    variants = {"control": VariantSnapshot(40, 10, {}), "treatment": VariantSnapshot(30, 15, {})}
    closed = (0.25, -0.125, 0.625)
    return ExperimentSnapshot("dcg@5", 4, variants, {"treatment": TreatmentSnapshot(state, closed, (live, 0.1, 0.7))})


def _decayed_means(days: int, *, from_snapshots: bool) -> list[DecayedMeans]:
    means = {"control": DecayedMeanSnapshot(2.0, 0.1, 50.0), "treatment": DecayedMeanSnapshot(2.5, 0.1, 50.0)}
    return [
        DecayedMeans(
            time_after_days(day),
            from_snapshot=from_snapshots,
            means={decay.name: means for decay in SENSITIVE_EXPERIMENT.decay},
        )
        for day in range(days)
    ]


SHIPPED = report_data(STUDENTS_WITH_EFFECT, time_after_days(14), decayed_means=_decayed_means(14, from_snapshots=True))


class TestPage:
    """The page as a whole."""

    def test_the_report_is_self_contained(self) -> None:
        """No links and no requests: the Content-Security-Policy allows the script and the styles of the file alone."""
        page = Page(render_experiment_report(SHIPPED))
        addresses = [value for _, name, value in page.attributes if name in {"href", "src", "srcset", "action"}]
        anchors = {value for _, name, value in page.attributes if name == "id"}
        assert all(address.startswith("#") and address[1:] in anchors for address in addresses)
        assert "http" not in page.text
        (policy,) = [value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value]
        assert re.fullmatch(
            r"default-src 'none'; script-src 'sha256-[\w+/=]+'; style-src 'sha256-[\w+/=]+'; base-uri 'none'; "
            "form-action 'none'",
            policy,
        )

    def test_the_report_has_all_charts_and_headings(self) -> None:
        """Charts by title, and sections without a chart by heading."""
        page = Page(render_experiment_report(SHIPPED))
        assert page.plots() == [
            "effect of treatment on dcg@5 over time",
            "harm of treatment on guardrails, compared with the allowed harm",
            "harm of treatment on share of rated responses over time",
            "students over time, by variant",
            "share of students in treatment over time",
            "mean dcg@5, last hours (1 h half-life), by variant",
            "mean dcg@5, last days (24 h half-life), by variant",
            "mean dcg@5, last 10 days (weight 1/(1 + age in days)), by variant",
        ]
        for heading in (
            "Ship – verdict on treatment",
            "Reasons",
            "Effect over time",
            "Metrics",
            "Guardrails",
            "Recent means",
            "Definitions and criteria",
            "Limits of a verdict",
        ):
            assert heading in page.text

    def test_names_of_experiments_and_variants_are_escaped(self) -> None:
        """Markup in a name stays text."""
        name = '<img src=x onerror="1">&'
        renamed = replace(
            SENSITIVE_EXPERIMENT,
            name=name,
            control="control",
            variants={"control": 0.5, name: 0.5},
            metrics=SENSITIVE_EXPERIMENT.metrics,
        )
        students = [
            student._replace(variant=name) if student.variant == "treatment" else student
            for student in STUDENTS_WITH_EFFECT
        ]
        page = Page(render_experiment_report(report_data(students, time_after_days(14), renamed)))
        assert "img" not in {tag for tag, _, _ in page.attributes}
        assert name in page.text


class TestVerdict:
    """The verdict in words."""

    def test_the_verdict_has_the_effect_and_the_interval(self) -> None:
        """The numbers equal those of the verdict."""
        verdict = SHIPPED.latest_analysis.verdicts["treatment"]
        primary, bounds = verdict.primary, verdict.relative_bounds
        text = Page(render_experiment_report(SHIPPED)).text
        change, lower, upper = [
            f"+{100 * (value or 0):.1f} %" for value in (primary.difference.relative_effect, *bounds)
        ]
        assert f"{change} ({lower} to {upper}) dcg@5 of treatment against control, 400 + 400 students" in text
        assert f"Known dcg@5 is better with treatment: {change} ({lower} to {upper}), 95 % confidence" in text
        assert "Blocks Nothing. Next Roll out treatment" in text
        means = f"{primary.control.mean:.4f} {primary.treatment.mean:.4f}"
        effects = [f"+{value or 0:.2f}" for value in (primary.difference.effect, primary.lower, primary.upper)]
        cells = f"{change} {effects[0]} {lower} to {upper} {effects[1]} to {effects[2]}"
        assert f"dcg@5 {cells} decides: better {means} 400 + 400" in text

    def test_no_sentence_is_on_the_page_twice(self) -> None:
        """The verdict, the reasons and the explanations of charts differ."""
        text = re.sub(
            r"<style>.*?</style>|<script.*?</script>|<section id=.definition.*",
            " ",
            render_experiment_report(SHIPPED),
            flags=re.DOTALL,
        )
        sentences = re.findall(r">\s*([A-Z][^<>]{40,}\.)\s*<", text)
        assert len([sentence for sentence in sentences if "the bands hold at all times" in sentence]) == 2
        assert len(set(sentences)) == len(sentences)

    @pytest.mark.parametrize(
        ("students", "days", "headline"),
        [
            (
                [*make_students("control", 2.0, 800), *make_students("treatment", 1.5, 800, seed=2)],
                14.0,
                "Stop bad dcg@5 is worse with treatment: −",
            ),
            (STUDENTS_WITH_EFFECT, 5.0, "Too early to decide open"),
            (
                [*make_students("control", 2.0, 800), *make_students("treatment", 2.5, 400, seed=2)],
                14.0,
                "Invalid bad The variants cannot be compared, so no effect is known.",
            ),
            (
                [*make_students("control", 2.0, 800), *make_students("treatment", 2.0, 800, seed=2)],
                14.0,
                "No relevant gain open dcg@5 may be better or worse with treatment",
            ),
        ],
    )
    def test_the_headline_begins_with_the_state_and_what_is_known(
        self, students: list[StudentGroup], days: float, headline: str
    ) -> None:
        """The state and its colour; then the effect, unless the variants cannot be compared."""
        html = render_experiment_report(report_data(students, time_after_days(days)))
        match = re.search(
            r'<section class="verdict (\w+)".*?<h2>(.*?)<span.*?<dt>Known</dt><dd>(.*?)</dd>', html, re.DOTALL
        )
        assert match is not None
        assert f"{match[2]} {match[1]} {match[3]}".startswith(headline)

    def test_before_the_first_student_there_is_no_chart(self) -> None:
        """A sentence states that there are no students."""
        page = Page(render_experiment_report(report_data([], time_after_days(1))))
        assert "No student has seen a response" in page.text
        assert page.plots() == []

    def test_without_a_treatment_there_is_no_comparison(self) -> None:
        """Students are counted nevertheless."""
        experiment = replace(SENSITIVE_EXPERIMENT, variants={"control": 1.0, "treatment": 0.0})
        page = Page(
            render_experiment_report(
                report_data(
                    [student for student in STUDENTS_WITH_EFFECT if student.variant == "control"],
                    time_after_days(14),
                    experiment,
                )
            )
        )
        assert "Nothing to compare" in page.text
        assert page.plots() == ["students over time, by variant"]

    def test_the_sample_size_and_first_day_are_stated(self) -> None:
        """At the top of the page; the newest event is that of this experiment, however new others are."""
        first_day = format_time(time_after_days(0)).partition(",")[0]
        newest_ms = SHIPPED.summary.last_event_at_ms
        assert newest_ms is not None
        assert newest_ms < SHIPPED.as_of_ms
        assert (
            f"Since Thu {first_day}. 800 students, 3 200 responses. Newest event: {format_time(newest_ms)}."
            in Page(render_experiment_report(SHIPPED)).text
        )

    def test_the_first_day_is_a_date_in_the_zone_of_the_experiment(self) -> None:
        """In New York, the day ends on the next day of UTC."""
        experiment = replace(SENSITIVE_EXPERIMENT, day_zone="America/New_York")
        page = Page(render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(14), experiment)))
        first_day = format_time(time_after_days(0)).partition(",")[0]
        assert f"Since Thu {first_day} (America/New_York)." in page.text
        assert "days (America/New_York) since the first response" in page.text

    def test_before_the_first_window_ends_there_is_no_effect(self) -> None:
        """Students are counted already."""
        page = Page(render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(3))))
        assert "The effect of treatment on dcg@5 is not known yet." in page.text
        assert page.plots()[0] == "students over time, by variant"

    def test_without_variance_there_is_no_interval(self) -> None:
        """The page neither asks for more students nor calls the interval narrow."""
        students = [
            StudentGroup(variant, FIRST_DAY, value, student_count=100)
            for variant, value in (("control", 2.0), ("treatment", 2.5))
        ]
        text = Page(render_experiment_report(report_data(students, time_after_days(14), min_students=0))).text
        assert "The effect of treatment on dcg@5 is not known yet." in text
        assert "dcg@5 +25.0 % +0.50 – – decides: not known yet" in text
        assert "narrow enough" not in text

    def test_effects_over_few_students_are_hidden(self) -> None:
        """A mean over fewer than `min_display_students` students would disclose personal data."""
        snapshots = {time_after_days(13) // 3_600_000: _snapshot("continue")}
        page = Page(
            render_experiment_report(
                report_data(STUDENTS_WITH_EFFECT, time_after_days(14), snapshots=snapshots, min_students=401)
            )
        )
        assert "The effect of treatment on dcg@5 is hidden, because a variant has few students." in page.text
        assert "dcg@5 – – – – decides: too few students – – 400 + 400" in page.text
        primary = SHIPPED.latest_analysis.verdicts["treatment"].primary
        assert format_optional_mean("dcg@5", primary.control.mean) not in page.text
        assert "confidence sequence 0" not in page.text
        assert "+0.2500" not in page.text
        assert (
            "+0.2500"
            in Page(
                render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(14), snapshots=snapshots))
            ).text
        )
        assert "effect of treatment on dcg@5 over time" not in page.plots()

    def test_every_treatment_has_a_verdict_with_a_confidence_level(self) -> None:
        """The level depends on the number of treatments."""
        experiment = replace(SENSITIVE_EXPERIMENT, variants={"control": 0.5, "treatment": 0.25, "other": 0.25})
        students = [
            *make_students("control", 2.0, 800),
            *make_students("treatment", 2.5, 400, seed=2),
            *make_students("other", 1.5, 400, seed=3),
        ]
        text = render_experiment_report(report_data(students, time_after_days(14), experiment))
        assert text.count(", 97.5 % confidence, however often you look") == 2
        assert text.count("</a> at 97.5 %.") == 2
        assert "<h2>Ship<" in text
        assert "<h2>Stop<" in text


class TestDisagreement:
    """nDCG and DCG with opposite effects."""

    @staticmethod
    def _comparison(effect: float, variance: float = 1e-4) -> VariantComparison:
        return compare_variants(
            Estimate(500, 2.0, variance), Estimate(500, 2.0 + effect, variance), alpha=0.05, mde=0.1
        )

    def test_opposite_significant_effects_are_a_disagreement(self) -> None:
        """In both directions, with both intervals and the reason; either metric may be primary."""
        for up, down in ((0.3, -0.4), (-0.3, 0.4)):
            comparisons = {"dcg@5": self._comparison(down), "ndcg@3": self._comparison(up)}
            ((sentence, contradictory),) = describe_disagreements(SENSITIVE_EXPERIMENT, comparisons).items()
            words = ("higher", "lower") if up > 0 else ("lower", "higher")
            assert contradictory
            assert sentence.startswith(f"ndcg@3 and dcg@5 disagree: ndcg@3 is {words[0]} (")
            assert f"dcg@5 is {words[1]} (" in sentence
            assert "(ideal: shown)" in sentence

    def test_an_insignificant_opposite_effect_is_only_a_note(self) -> None:
        """If neither effect is significant, there is no note."""
        comparisons = {"dcg@5": self._comparison(-0.4), "ndcg@3": self._comparison(0.01)}
        ((sentence, contradictory),) = describe_disagreements(SENSITIVE_EXPERIMENT, comparisons).items()
        assert not contradictory
        assert sentence.startswith("ndcg@3 and dcg@5 differ: ndcg@3 has no clear change (")
        assert "dcg@5 is lower (" in sentence
        assert (
            describe_disagreements(
                SENSITIVE_EXPERIMENT, {"dcg@5": self._comparison(-0.01), "ndcg@3": self._comparison(0.01)}
            )
            == {}
        )

    def test_effects_of_equal_sign_do_not_disagree(self) -> None:
        """Other pairs of metrics are not compared."""
        assert (
            describe_disagreements(
                SENSITIVE_EXPERIMENT, {"dcg@5": self._comparison(0.4), "ndcg@3": self._comparison(0.4)}
            )
            == {}
        )
        assert (
            describe_disagreements(
                SENSITIVE_EXPERIMENT, {"dcg@5": self._comparison(0.4), "success@2": self._comparison(-0.4)}
            )
            == {}
        )

    def test_only_a_primary_gain_metric_is_compared_with_ndcg(self) -> None:
        """If an nDCG is primary, it is compared with all DCG and CG metrics."""
        comparisons = {"dcg@5": self._comparison(-0.4), "cg@5": self._comparison(-0.4), "ndcg@3": self._comparison(0.4)}
        assert len(describe_disagreements(SENSITIVE_EXPERIMENT, comparisons)) == 1
        disagreements = describe_disagreements(replace(SENSITIVE_EXPERIMENT, primary="ndcg@3"), comparisons)
        assert [sentence.partition(":")[0] for sentence in disagreements] == [
            "ndcg@3 and dcg@5 disagree",
            "ndcg@3 and cg@5 disagree",
        ]

    def test_a_disagreement_with_a_constant_ideal_has_another_explanation(self) -> None:
        """The explanation by the ideal of the shown list applies only to that ideal."""
        comparisons = {"dcg@5": self._comparison(0.4), "ndcg@3": self._comparison(-0.4)}
        (sentence,) = describe_disagreements(replace(SENSITIVE_EXPERIMENT, ideal="constant"), comparisons)
        assert "ideal: shown" not in sentence

    def test_a_disagreement_is_on_the_page(self) -> None:
        """Beside any verdict: the diagnostics of a real verdict are replaced."""
        report = SHIPPED
        verdict = report.latest_analysis.verdicts["treatment"]
        diagnostics = tuple(
            (name, self._comparison(-0.4) if name == "ndcg@3" else comparison)
            for name, comparison in verdict.diagnostics
        )
        analysis = replace(report.latest_analysis, verdicts={"treatment": replace(verdict, diagnostics=diagnostics)})
        text = Page(render_experiment_report(replace(report, latest_analysis=analysis))).text
        assert "Metrics disagree. ndcg@3 and dcg@5 disagree: ndcg@3 is lower" in text
        assert "Metrics disagree" not in Page(render_experiment_report(report)).text


class TestHistory:
    """The parts of the report that are read from snapshots."""

    def test_a_page_without_snapshots_states_that_history_is_missing(self) -> None:
        """Charts that can be recomputed are shown nevertheless."""
        page = Page(
            render_experiment_report(
                report_data(
                    STUDENTS_WITH_EFFECT, time_after_days(14), decayed_means=_decayed_means(14, from_snapshots=False)
                )
            )
        )
        assert "No history is stored" in page.text
        assert "No verdict is recorded yet." in page.text
        assert len(page.plots()) == 8

    def test_changes_of_the_verdict_state_are_listed_with_times(self) -> None:
        """Each change once, with the hour of the first snapshot that has the new state."""
        states: list[VerdictState] = ["insufficient_data", "insufficient_data", "continue", "ship", "ship", "continue"]
        snapshots = {HOUR + 30 * number: _snapshot(state) for number, state in enumerate(states)}
        page = Page(
            render_experiment_report(
                report_data(
                    STUDENTS_WITH_EFFECT,
                    time_after_days(14),
                    snapshots=snapshots,
                    decayed_means=_decayed_means(14, from_snapshots=True),
                )
            )
        )
        assert "No history is stored" not in page.text
        history = page.text[page.text.index("Verdicts on treatment") :]
        changes = re.findall(r"(\d+ \w+ \d{4}, \d\d:00 UTC) (\D+) [+]", history)
        titles = [STATE_TITLES[state] for state in states]
        listed = [(format_time(3_600_000 * (HOUR + 30 * index)), titles[index]) for index in (0, 2, 3, 5)]
        # The present state differs from that of the last snapshot, so it is listed, too.
        assert changes == [*listed, (format_time(time_after_days(14)), STATE_TITLES["ship"])][::-1]
        assert history.count("+0.2500 −0.1250 +0.6250") == 4

    def test_counts_over_time_are_drawn_from_snapshots(self) -> None:
        """Past counts cannot be recomputed."""
        snapshots = {HOUR + number: _snapshot("continue") for number in range(6)}
        text = render_experiment_report(
            report_data(
                STUDENTS_WITH_EFFECT,
                time_after_days(14),
                snapshots=snapshots,
                decayed_means=_decayed_means(14, from_snapshots=True),
            )
        )
        assert Page(text).plots()[-3:] == [
            "number of responses, by variant",
            "share of rated responses, by variant",
            "students with more than one variant",
        ]
        shares = Page(text).charts()[-2]
        assert {name: set(_line_values(shares, name)) for name in ("control", "treatment")} == {
            "control": {25},
            "treatment": {50},
        }
        single = Page(
            render_experiment_report(
                report_data(STUDENTS_WITH_EFFECT, time_after_days(14), snapshots={HOUR: _snapshot("continue")})
            )
        )
        assert "number of responses, by variant" not in single.plots()

    def test_only_the_newest_state_changes_are_listed(self) -> None:
        """The number of omitted changes is stated."""
        snapshots = {HOUR + number: _snapshot("continue" if number % 2 else "ship") for number in range(130)}
        text = Page(
            render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(14), snapshots=snapshots))
        ).text
        assert "81 earlier changes are left out" in text
        assert format_time(3_600_000 * (HOUR + 129)) in text
        assert format_time(3_600_000 * (HOUR + 80)) not in text

    def test_the_live_effect_is_drawn_from_snapshots(self) -> None:
        """Past live effects cannot be recomputed."""
        snapshots = {HOUR + number: _snapshot("continue", None if number == 3 else 0.4) for number in range(6)}
        text = render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(14), snapshots=snapshots))
        live = "all responses so far, approximate"
        assert _line_values(Page(text).charts()[0], live) == [0.4, 0.4, 0.4, None, 0.4, 0.4]
        assert _line_values(Page(render_experiment_report(SHIPPED)).charts()[0], live) == []

    def test_bands_of_decayed_means_cover_the_whole_chart(self) -> None:
        """13 half-lives of a day, 312 of an hour. Without a half-life or a standard error there is no band."""
        page = render_experiment_report(SHIPPED)
        assert "chart together (3.51 standard errors)" in page
        assert "chart together (4.38 standard errors)" in page
        assert "No bands are known for this kind of mean" in page
        means_without_errors = [
            replace(means, means={"24h": {"control": DecayedMeanSnapshot(2.0, None, 50.0)}})
            for means in SHIPPED.decayed_means
        ]
        page_without_bands = render_experiment_report(replace(SHIPPED, decayed_means=tuple(means_without_errors)))
        (chart,) = [chart for chart in Page(page_without_bands).charts() if "24 h half-life" in chart["description"]]
        assert set(_line_values(chart, "control")) == {2}
        assert not any("l" in row for row in chart["datasets"]["rows"])
        assert decayed_mean_point(7, DecayedMeanSnapshot(2.0, 0.1, 50.0), 3.5) == Point(7, 2.0, 1.65, 2.35)
        # With fewer effective responses it would be left far more often than is said.
        assert decayed_mean_point(7, DecayedMeanSnapshot(2.0, 0.1, 49.0), 3.5) == Point(7, 2.0)


@pytest.mark.parametrize(("min_students", "labels"), [(2, ["treatment: mean outside its band"]), (3, [])])
def test_the_marks_of_charts_leave_out_means_over_too_few_students(min_students: int, labels: list[str]) -> None:
    """A student has 50 responses, and the day 100."""
    report = report_data(STUDENTS_WITH_EFFECT, time_after_days(14), min_students=min_students)
    day = VariantDay(100, 100, 1.2, 0.1, DayBand(2.0, 1.8, 2.2))
    remark = DayRemark("left_band", "mean 1.2 below its usual band", "treatment")
    variants = {"control": day, "treatment": day}
    entry = DayEntry(FIRST_DAY, 0, HOUR_MS, is_over=True, variants=variants, remarks=(remark,))
    summary = replace(
        report.summary,
        variants={
            name: replace(variant, responses=50 * (variant.students + variant.responses_without_user))
            for name, variant in report.summary.variants.items()
        },
    )
    log = DayLog("dcg@5", "UTC", is_cut=False, days=(entry,))
    verdict = report.latest_analysis.verdicts["treatment"]
    chart = effect_chart(replace(report, summary=summary, day_log=log), "treatment", verdict)
    assert chart is not None
    assert [event["e"] for event in chart["datasets"].get("events", ())] == labels


class TestStudentSplit:
    """Students by variant, and the test of the intended shares (SRM)."""

    def test_each_allocation_phase_has_intended_shares(self) -> None:
        """A line and a table per phase."""
        change = AllocationSettings(time_after_days(5), {"control": 0.25, "treatment": 0.75})
        experiment = replace(
            SENSITIVE_EXPERIMENT, decision=replace(SENSITIVE_EXPERIMENT.decision, allocations=(change,))
        )
        students = [*make_students("control", 2.0, 200, 5), *make_students("treatment", 2.0, 200, 5, seed=2)]
        students += [
            *make_students("control", 2.0, 100, 5, 3, FIRST_DAY + 5),
            *make_students("treatment", 2.0, 300, 5, 4, FIRST_DAY + 5),
        ]
        text = render_experiment_report(report_data(students, time_after_days(14), experiment))
        page = Page(text)
        (chart,) = [chart for chart in page.charts() if "share of students" in chart["description"]]
        intended = [value for value, _ in groupby(_line_values(chart, "intended"))]
        assert intended == [50, None, 75]
        assert [event["e"] for event in chart["datasets"]["events"]] == ["share change"]
        assert "1 control 50.0 % 50.0 % 400" in page.text
        assert "2 treatment 75.0 % 75.0 % 400" in page.text
        assert "Split as intended." in page.text

    def test_a_sample_ratio_mismatch_is_reported(self) -> None:
        """With the consequences."""
        students = [*make_students("control", 2.0, 800), *make_students("treatment", 2.5, 400, seed=2)]
        assert (
            "Wrong split. The variants do not have as many students as intended. Do not use the effects"
            in Page(render_experiment_report(report_data(students, time_after_days(14)))).text
        )


class TestSubgroups:
    """Effects by category and by days since exposure."""

    def test_subgroups_have_a_chart_and_a_table(self) -> None:
        """Significant effects are bold; subgroups without students are listed."""
        page = Page(
            render_experiment_report(
                report_data(STUDENTS_WITH_SEGMENT_EFFECT, time_after_days(14), SUBGROUP_EXPERIMENT)
            )
        )
        assert {"effect of treatment by category", "effect of treatment by days since first exposure"} <= {
            *page.plots()
        }
        assert "treatment, by category of a student's first question" in page.text
        assert "does the effect last?" in page.text
        assert re.search(r"fractions shown to differ \+0\.\d+ \+0\.\d+ to \+\d\.\d+ 300 \+ 300", page.text)
        assert "other too few students for an interval 0 + 0" in page.text

    def test_an_experiment_without_subgroups_has_no_subgroup_section(self) -> None:
        """Not even the headings."""
        text = Page(render_experiment_report(SHIPPED)).text
        assert "For whom" not in text
        assert "does the effect last?" not in text

    def test_subgroups_of_few_students_are_hidden(self) -> None:
        """Neither table nor chart contain the effect."""
        report = report_data(STUDENTS_WITH_SEGMENT_EFFECT, time_after_days(14), SUBGROUP_EXPERIMENT, min_students=301)
        page = Page(render_experiment_report(report))
        assert "effect of treatment by category" not in page.plots()
        assert re.search(r"fractions( shown to differ)? too few students for an interval 300 \+ 300", page.text)


class TestAdjustment:
    """The adjustment for the pre-period (CUPED)."""

    def test_the_cuped_adjustment_is_explained_beside_the_verdict(self) -> None:
        """With the number of students, the reduction of the variance, and the unadjusted effect."""
        experiment = replace(SENSITIVE_EXPERIMENT, starts_at_ms=time_after_days(0), pre_period_ms=7 * 24 * 3_600_000)
        report = report_data(STUDENTS_WITH_EFFECT, time_after_days(14), experiment)
        verdict = report.latest_analysis.verdicts["treatment"]
        assert "Adjustment" not in Page(render_experiment_report(report)).text
        arms = verdict.evidence.arms
        same = EstimatePair(arms.control, arms.control)
        adjustment = CupedAdjustment(
            0.5, 321, arms, arms, same, EstimatePair(Estimate(400, 0.8, 4e-4), Estimate(400, 0.8, 4e-4))
        )
        evidence = msgspec.structs.replace(verdict.evidence, adjustment=adjustment)
        analysis = replace(report.latest_analysis, verdicts={"treatment": decide_verdict(evidence)})
        text = Page(render_experiment_report(replace(report, latest_analysis=analysis))).text
        assert "adjusted for differences between students in the 7 days before the start (CUPED" in text
        assert "adjusted for the results of 321 students before the experiment" in text
        assert "reduces the variance of the effect by 0.0 %. Without the adjustment, the interval is +" in text


class TestDefinitions:
    """The section on method and definitions."""

    def test_definitions_follow_the_configuration(self) -> None:
        """Gain, ideal, population, window, alpha."""
        experiment = replace(
            SENSITIVE_EXPERIMENT,
            gain="exp2",
            ideal="constant",
            exposure_days=5,
            decision=replace(SENSITIVE_EXPERIMENT.decision, population="all", alpha=0.01),
        )
        text = Page(render_experiment_report(report_data(STUDENTS_WITH_EFFECT, time_after_days(14), experiment))).text
        assert "Gain: exp2." in text
        assert "Ideal of ndcg: constant." in text
        assert "all responses; unrated responses count 0" in text
        assert "the mean over the first 5 days" in text
        assert "is ever outside is at most 0.01" in text
        assert "wrong way round" not in text


_QUALITY_TITLE = "Events that do not count, or only in part"


def test_events_that_do_not_count_are_in_a_table_by_variant() -> None:
    """The same rows as on the page; without such events there is no table."""
    report = report_data(STUDENTS_WITH_EFFECT, time_after_days(30))
    assert _QUALITY_TITLE not in Page(render_experiment_report(report)).text
    quality = DataQuality(
        {
            "control": ResponseQuality(75, rejected={"repeated_item": 25}, late=2),
            "treatment": ResponseQuality(100, uncounted_reactions={"before_response": 1234}),
        }
    )
    text = Page(render_experiment_report(replace(report, summary=replace(report.summary, data_quality=quality)))).text
    plain_text = text.replace("\u202f", " ")
    assert f"{_QUALITY_TITLE} value control treatment Rejected, repeated_item 25 24.5 % 0 0.0 %" in plain_text
    assert "Reactions before the response 0 1 234" in plain_text


class TestChangedExperiments:
    """Remarks on changed, incomplete and archived experiments."""

    def test_the_report_names_changes_and_the_time_of_archiving(self) -> None:
        """The verdict is as of the last event."""
        history = ExperimentHistory(
            archived_at_ms=time_after_days(13),
            changes=(ExperimentChange(time_after_days(5), "criteria", "mde 0.05 → 0.02"),),
        )
        text = Page(render_experiment_report(_with_history(history))).text
        assert "Archived on 14 Jan 2026, 00:00 UTC" in text
        assert "Decision criteria changed on 2026-01-06: mde 0.05 → 0.02." in text

    def test_the_report_on_incomplete_numbers_has_no_decision(self) -> None:
        """A backfill still counts events."""
        text = render_experiment_report(_with_history(ExperimentHistory(backfill=BackfillProgress("running", 0.434))))
        assert "Incomplete, so no decision yet" in text
        assert "the experiment is 43 % filled" in text
        assert "The split is not tested, because the numbers are incomplete." in text


def _with_history(history: ExperimentHistory) -> ReportData:
    """Return the data of the report with a history of the experiment's declaration."""
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, history=history)
    analysis = analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14))
    summary = replace(SHIPPED.summary, history=history, analysis=analysis)
    return replace(SHIPPED, summary=summary, latest_analysis=analysis)


FAST_EXPERIMENT = replace(
    SENSITIVE_EXPERIMENT,
    metrics=(MetricSpec("latency_ms", "latency_ms", most=4, lower_is_better=True),),
    primary="latency_ms",
    decision=replace(SENSITIVE_EXPERIMENT.decision, margin=0.2, guardrails=()),
)
FASTER_STUDENTS = [*make_students("control", 2.4), *make_students("treatment", 1.6, seed=2)]


class TestAnswerMetrics:
    """The report on an experiment without ranking metrics, whose primary metric is better if it is lower."""

    def test_a_fall_of_a_latency_is_good_news(self) -> None:
        """In ms, and without a word on ranking metrics or ratings."""
        html = render_experiment_report(report_data(FASTER_STUDENTS, time_after_days(14), FAST_EXPERIMENT))
        page = Page(html)
        assert 'class="verdict good"' in html
        assert "Mean latency is better with treatment: −" in page.text
        assert re.search(
            r"Mean latency latency_ms lower is better −\S+ % −0\.57 ms .* decides: better 1\.8 ms 1\.2 ms", page.text
        )
        assert "Smallest effect of interest: 0.3 ms. Allowed loss: 0.2 ms." in page.text
        assert "latency_ms: mean latency; a larger value counts as 4 ms; lower is better" in page.text
        for word in ("dcg", "Grades", "rated"):
            assert word not in page.text.partition("Limits of a verdict")[0]

    def test_the_smallest_effect_of_interest_is_drawn_on_the_side_of_a_gain(self) -> None:
        """Below the line of no difference, and the allowed loss above."""
        report = report_data(FASTER_STUDENTS, time_after_days(14), FAST_EXPERIMENT)
        chart = effect_chart(report, "treatment", report.latest_analysis.verdicts["treatment"])
        assert chart is not None
        y = {line["n"]: line["y"] for line in chart["datasets"]["references"]}
        assert y["smallest effect of interest"] < 0 < y["allowed loss"]

    def test_charts_name_the_unit_of_the_experiment(self) -> None:
        """Without students where classes are compared."""
        report = report_data(FASTER_STUDENTS, time_after_days(14), replace(FAST_EXPERIMENT, unit="class_id"))
        verdict = report.latest_analysis.verdicts["treatment"]
        charts = [
            effect_chart(report, "treatment", verdict),
            student_share_chart(report, "treatment"),
            student_count_chart(report),
        ]
        descriptions = [chart["description"] for chart in charts if chart is not None]
        assert len(descriptions) == 3
        assert all("group" in text and "student" not in text for text in descriptions)

    def test_a_configured_percent_sign_changes_no_number_of_a_chart(self) -> None:
        """Only shares are fractions."""
        texts = DisplayTexts(metrics={FAST_EXPERIMENT.primary: DisplayText(unit="%")})
        plain, configured = (
            report_data(FASTER_STUDENTS, time_after_days(14), experiment)
            for experiment in (FAST_EXPERIMENT, replace(FAST_EXPERIMENT, texts=texts))
        )
        rows = []
        for report in (plain, configured):
            chart = effect_chart(report, "treatment", report.latest_analysis.verdicts["treatment"])
            assert chart is not None
            rows.append(chart["datasets"]["rows"])
        assert rows[0] == rows[1]

    def test_shares_of_ratings_do_not_matter_if_every_response_has_a_value(self) -> None:
        """More feedback is no bias of a share over all responses, but the metric itself."""
        share = MetricSpec("share:thumb_up", "share", kind="thumb_up")
        silent = MetricSpec("score:csat", "score", kind="csat", least=1, most=5)
        for metric, is_reported in ((share, False), (replace(silent, silence=1.0), False), (silent, True)):
            experiment = replace(SENSITIVE_EXPERIMENT, metrics=(metric,), primary=metric.name)
            analysis = analyze(experiment, sum_students(experiment, FASTER_STUDENTS), time_after_days(14))
            assert (analysis.verdicts["treatment"].evidence.rated_share is not None) == is_reported
