"""Labels, units and descriptions in sentences, tables and JSON."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import msgspec
from rich.console import Console

from monitor.analysis import ExperimentSummary, StoreSummary
from monitor.config import DisplayText, DisplayTexts, ExperimentSettings, MetricSpec
from monitor.export import (
    describe_decisions,
    describe_headlines,
    describe_settings,
    experiment_footnotes,
    experiment_table_rows,
    render_summary,
    render_verdicts,
)
from monitor.stats import Verdict, decide_verdict, parse_evidence
from tests.support.pages import render_experiment, render_list
from tests.support.student_groups import (
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    sum_students,
    time_after_days,
)
from tests.support.units import analyze
from tests.unit.export.test_answer_metrics import ESCALATED, SCORE
from tests.unit.export.test_answer_metrics import _experiment as summarize_experiment

TEXTS = DisplayTexts(
    metrics={
        "dcg@5": DisplayText("answer quality", "points", "How useful the five first videos are."),
        "score:csat": DisplayText(unit="stars", description="What students answer."),
    },
    variants={"control": DisplayText("Old ranker"), "treatment": DisplayText("New ranker")},
    kinds={"escalated": DisplayText("asked for a human"), "csat": DisplayText("satisfaction")},
)
LABELED = replace(SENSITIVE_EXPERIMENT, texts=TEXTS)


def _summary(settings: ExperimentSettings = LABELED, days: float = 14.0) -> ExperimentSummary:
    analysis = analyze(settings, sum_students(settings, STUDENTS_WITH_EFFECT), time_after_days(days))
    return ExperimentSummary(
        "ranker", "control", "dcg@5", 0, {}, analysis, (MetricSpec("dcg@5", "dcg", 5),), texts=settings.texts
    )


def _verdict(summary: ExperimentSummary) -> Verdict:
    assert summary.analysis is not None
    return summary.analysis.verdicts["treatment"]


def _texts_of(verdict: Verdict) -> str:
    return " ".join(reason.text for reason in (*verdict.reasons, *verdict.notes))


def test_reasons_and_notes_have_labels_and_units() -> None:
    """Of metrics and variants. The state and all numbers are those without labels."""
    plain, labeled = _verdict(_summary(replace(LABELED, texts=DisplayTexts()))), _verdict(_summary())
    assert "dcg@5" in _texts_of(plain)
    assert "Answer quality is better" in _texts_of(labeled)
    assert "dcg@5" not in _texts_of(labeled)
    assert (labeled.state, labeled.primary, labeled.guardrails) == (plain.state, plain.primary, plain.guardrails)


def test_texts_of_verdicts_follow_from_the_printed_evidence() -> None:
    """The evidence of versions without texts has none, and reads as before."""
    verdict = _verdict(_summary())
    printed = msgspec.to_builtins(verdict.evidence)
    assert decide_verdict(parse_evidence(printed)) == verdict
    assert printed.pop("texts")["variants"]["control"]["label"] == "Old ranker"
    old = decide_verdict(parse_evidence(printed))
    assert (old.evidence.texts, old.state) == (DisplayTexts(), verdict.state)
    assert "dcg@5 is better" in _texts_of(old)


def test_a_variant_with_too_few_students_has_its_label() -> None:
    """As in every reason that names a variant."""
    early = _verdict(_summary(days=3.5))
    assert "New ranker has " in _texts_of(early)
    assert "treatment" not in _texts_of(early)


def test_the_headline_has_labels() -> None:
    """With the name of the variant in parentheses, because commands need it."""
    (headline,) = describe_headlines(_summary())
    assert (headline.treatment, headline.label) == ("treatment", "New ranker (treatment)")
    assert headline.finding.startswith("Answer quality is better with New ranker: +")
    assert headline.next_step == "Roll out New ranker: nothing more has to be waited for."
    (plain,) = describe_headlines(_summary(replace(LABELED, texts=DisplayTexts())))
    assert plain.label == "treatment"


def test_decisions_have_labels_and_units() -> None:
    """In the sentence, in the sentence with both means, and in the time until a decision."""
    (decision,) = describe_decisions(_summary())
    assert (decision.treatment, decision.label) == ("treatment", "New ranker (treatment)")
    assert decision.sentence.startswith("Ship: answer quality improved by ")
    assert " points (" in decision.sentence
    means = next(detail for detail in decision.details if detail.startswith("Answer quality, mean over students: "))
    assert " points with New ranker, " in means
    assert " points with Old ranker (+" in means


def test_the_table_has_labels_units_and_descriptions() -> None:
    """A label replaces the name in the heading; the name follows in the description."""
    experiment = replace(summarize_experiment(SCORE, ESCALATED), texts=TEXTS)
    heading = {row.heading: row.description for row in experiment_table_rows(experiment, 0) if row.group != "traffic"}
    assert heading == {
        "score:csat (primary metric, mean)": "What students answer.",
        "share:escalated (guardrail, mean, lower is better)": "Share of responses with feedback 'asked for a human'",
    }
    labeled = replace(TEXTS, metrics={"score:csat": DisplayText("Satisfaction", "stars", "What students answer.")})
    row = next(
        row
        for row in experiment_table_rows(replace(experiment, texts=labeled), 0)
        if row.group == "score:csat" and row.label == "All time"
    )
    assert row.heading == "Satisfaction (primary metric, mean)"
    assert row.description == "What students answer. Metric score:csat."
    assert row.values == ("3.0000 stars", "4.0000 stars")


def test_rows_of_feedback_and_footnotes_have_the_labels_of_kinds() -> None:
    """A kind of feedback without a label keeps its name."""
    experiment = replace(summarize_experiment(SCORE, undefined=10), texts=TEXTS)
    variants = {
        name: replace(variant, responses_with_feedback={"escalated": 10, "liked": 20})
        for name, variant in experiment.variants.items()
    }
    experiment = replace(experiment, variants=variants)
    labels = [row.label for row in experiment_table_rows(experiment, 0) if row.group == "feedback"]
    assert labels == [
        "Share of responses with feedback 'asked for a human'",
        "Share of responses with feedback 'liked'",
    ]
    assert "20 responses without feedback 'satisfaction': not in the mean score of 'satisfaction'." in (
        experiment_footnotes(experiment, 0)
    )


def test_the_terminal_prints_labels_as_text() -> None:
    """Brackets in a label are no markup."""
    texts = replace(TEXTS, variants={"treatment": DisplayText("New [b]ranker"), "control": DisplayText("Old")})
    output = io.StringIO()
    console = Console(file=output, width=500, markup=False, emoji=False, highlight=False)
    summary = _summary(replace(LABELED, texts=texts))
    console.print(render_verdicts(summary, {"treatment": ()}))
    console.print(
        render_summary(StoreSummary(0, {"thumbs": replace(summarize_experiment(SCORE), texts=texts)}), now_ms=0)
    )
    text = output.getvalue()
    assert "New [b]ranker (treatment) – Ship" in text
    assert "answer quality, points  complete students" in text
    assert "Old (control)" in text


def test_a_long_label_is_wrapped_in_a_terminal_and_cuts_no_number() -> None:
    """The unit is named once, in the first column."""
    texts = replace(TEXTS, metrics={"dcg@5": DisplayText("how useful the five first videos are to students", "points")})
    output = io.StringIO()
    Console(file=output, width=100).print(render_verdicts(_summary(replace(LABELED, texts=texts)), {"treatment": ()}))
    table_row, _ = (line for line in output.getvalue().splitlines() if line.startswith(" how useful the"))
    assert "…" not in output.getvalue()
    assert re.search(r"\d\.\d{4} +\+\d\.\d{4} +\+\d\.\d{4} to \+\d\.\d{4} +\d+ \+ \d+", table_row)


def test_pages_show_labels_as_text_with_the_name_of_a_variant_as_tooltip() -> None:
    """Markup in a label is escaped."""
    texts = replace(TEXTS, variants={"treatment": DisplayText("New <b>ranker"), "control": DisplayText("Old ranker")})
    html = render_experiment(StoreSummary(0, {"thumbs": replace(summarize_experiment(SCORE), texts=texts)}))
    assert '<th scope="col" title="treatment">New &lt;b&gt;ranker</th>' in html
    assert '<th scope="col" title="control">Old ranker <small>(control)</small></th>' in html
    assert "<small>What students answer.</small>" in html
    assert "3.0000 stars" in html
    summary = _summary(replace(LABELED, texts=texts))
    assert ">New &lt;b&gt;ranker (treatment)</span>" in render_list(StoreSummary(0, {"ranker": summary}))


def test_settings_and_json_have_owner_hypothesis_link_and_texts() -> None:
    """Absent texts are null in JSON, and left out of the settings."""
    summary = replace(_summary(), owner="Ada", hypothesis="It helps.", link="https://wiki.example.org/")
    keys = ("owner", "hypothesis", "link", "texts")
    assert {key: summary.to_json()[key] for key in keys} == {
        "owner": "Ada",
        "hypothesis": "It helps.",
        "link": "https://wiki.example.org/",
        "texts": TEXTS.to_json(),
    }
    plain = _summary(replace(LABELED, texts=DisplayTexts())).to_json()
    assert [plain[key] for key in keys] == [None, None, None, {}]
    assert describe_settings(LABELED)["texts"] == TEXTS.to_json()
    assert not describe_settings(SENSITIVE_EXPERIMENT).keys() & set(keys)
