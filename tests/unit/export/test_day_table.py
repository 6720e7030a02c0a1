"""The days of an experiment for readers: sentences, rows, marks and the rendered table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.analysis import DayEntry, DayLog, DayRemark, ExperimentSummary, VariantDay
from monitor.analysis.summary import VariantSummary
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import DisplayText, DisplayTexts, MetricSpec, Population
from monitor.export import build_day_table, describe_unusual_days, list_day_marks
from monitor.stats import DayBand
from monitor.web.pages import TEMPLATE_ENVIRONMENT

TUESDAY = 20_781
"""2026-11-24."""


def _variant_summary(responses: int, students: int) -> VariantSummary:
    return VariantSummary(responses, responses, students, 0, {}, {}, None, None, {})


def _experiment(metric: MetricSpec | None = None) -> ExperimentSummary:
    variants = {"treatment": _variant_summary(30_000, 3000), "control": _variant_summary(30_000, 3000)}
    spec = metric or MetricSpec("dcg@5", "dcg", 5)
    return ExperimentSummary("ranker", "control", spec.name, 0, variants, metric_specs=(spec,))


def _variant(mean: float | None, count: int = 3400, usual: float = 2.1, half_width: float = 0.2) -> VariantDay:
    band = DayBand(usual, usual - half_width, usual + half_width) if count >= 100 else None
    return VariantDay(2 * count, count, mean, 0.04, band)


def _entry(day: int, control: VariantDay, treatment: VariantDay, *remarks: DayRemark) -> DayEntry:
    variants = {"control": control, "treatment": treatment}
    unusual = [
        DayRemark("left_band", "mean out of its band", name) for name, variant in variants.items() if variant.left_band
    ]
    return DayEntry(
        day, day * DAY_MS, (day + 1) * DAY_MS, is_over=True, variants=variants, remarks=(*unusual, *remarks)
    )


def _log(*entries: DayEntry, metric: str = "dcg@5") -> DayLog:
    return DayLog(metric, "UTC", is_cut=False, days=entries)


BROKEN = _entry(TUESDAY, _variant(2.05), _variant(1.2))


def test_a_collapse_is_stated_with_day_usual_mean_and_number_of_responses() -> None:
    """With the labels of the configuration."""
    texts = DisplayTexts(
        metrics={"dcg@5": DisplayText("answer quality")}, variants={"treatment": DisplayText("model B")}
    )
    (sentence,) = describe_unusual_days(_log(BROKEN), replace(_experiment(), texts=texts))
    assert sentence.replace("\u202f", " ") == (
        "On Tuesday 24 November, model B's answer quality was 1.20 instead of the usual 2.10 (−43 %), "
        "over 3 400 rated responses."
    )


@pytest.mark.parametrize("label", ["Mean rating", "average relevance", "answer quality"])
def test_a_configured_label_is_stated_as_it_is(label: str) -> None:
    """Only the name of a metric without a label is preceded by "mean"."""
    labeled = replace(_experiment(), texts=DisplayTexts(metrics={"dcg@5": DisplayText(label)}))
    for experiment, quantity in ((labeled, label), (_experiment(), "mean dcg@5")):
        (sentence,) = describe_unusual_days(_log(BROKEN), experiment)
        assert sentence.startswith(f"On Tuesday 24 November, treatment's {quantity} was 1.20 ")


@pytest.mark.parametrize(
    ("mean", "text"), [(99.96, "100"), (0.00001234, "0.0000"), (0.0, "0.00"), (12_345.6, "12 346"), (9.999, "10.0")]
)
def test_means_have_no_exponent_and_no_trailing_dot(mean: float, text: str) -> None:
    """Three significant digits, at most four decimals, and thousands in groups as in the sentences."""
    table = build_day_table(_log(_entry(TUESDAY, _variant(mean), _variant(mean))), _experiment())
    assert table.newest_rows[0].cells[0].mean.replace("\u202f", " ") == text


def test_shares_are_stated_in_points() -> None:
    """A relative change of a share would be misread. Here, lower values are better."""
    spec = MetricSpec("share:escalated", "share", kind="escalated", lower_is_better=True)
    entry = _entry(TUESDAY, _variant(0.02, usual=0.02, half_width=0.005), _variant(0.05, usual=0.02, half_width=0.005))
    (sentence,) = describe_unusual_days(_log(entry, metric=spec.name), _experiment(spec))
    assert sentence.replace("\u202f", " ") == (
        "On Tuesday 24 November, treatment's share of responses with feedback 'escalated' was 5.0 % instead of the "
        "usual 2.0 % (+3.0 points), over 3 400 responses."
    )


def test_at_most_three_periods_are_stated_oldest_first_and_the_further_days_counted() -> None:
    """The worst three are stated; a mean that was too good comes after all that were too bad."""
    means = (1.7, 2.1, 3.9, 2.1, 1.5, 2.1, 1.2, 2.1, 1.6)
    entries = [_entry(TUESDAY + number, _variant(2.1), _variant(mean)) for number, mean in enumerate(means)]
    sentences = describe_unusual_days(_log(*entries), _experiment())
    assert [sentence.split(",")[0] for sentence in sentences[:3]] == [
        "On Saturday 28 November",
        "On Monday 30 November",
        "On Wednesday 2 December",
    ]
    assert sentences[3:] == ["2 more days were outside the usual band."]


def test_consecutive_days_on_the_same_side_are_one_sentence() -> None:
    """With the mean of all their responses; a day on the other side begins another one."""
    days = ((1.2, 3400), (1.5, 600), (2.9, 1000))
    entries = [
        _entry(TUESDAY + number, _variant(2.1), _variant(mean, count)) for number, (mean, count) in enumerate(days)
    ]
    sentences = [sentence.replace("\u202f", " ") for sentence in describe_unusual_days(_log(*entries), _experiment())]
    assert len(sentences) == 2
    assert sentences[0] == (
        "From Tuesday 24 November to Wednesday 25 November, treatment's mean dcg@5 was 1.25 instead of the usual 2.10 "
        "(−41 %), over 4 000 rated responses."
    )
    assert sentences[1].startswith(
        "On Thursday 26 November, treatment's mean dcg@5 was 2.90 instead of the usual 2.10 "
    )


def test_rows_are_newest_first_and_the_earlier_ones_apart() -> None:
    """14 days are displayed at once."""
    entries = [_entry(TUESDAY + number, _variant(2.0), _variant(2.1)) for number in range(16)]
    table = build_day_table(_log(*entries), _experiment())
    assert table.variants == ("control", "treatment")
    assert [row.date for row in table.newest_rows][:2] == ["2026-12-09", "2026-12-08"]
    assert (len(table.newest_rows), [row.date for row in table.earlier_rows]) == (14, ["2026-11-25", "2026-11-24"])
    control, treatment = table.newest_rows[0].cells
    assert (control.mean, control.difference, treatment.mean, treatment.difference.replace("\u202f", " ")) == (
        "2.00",
        "",
        "2.10",
        "+5 %",
    )
    assert treatment.count.replace("\u202f", " ") == "n = 3 400 of 6 800"


def test_few_responses_have_no_per_cent_and_are_uncertain() -> None:
    """In either variant; a variant without a value has no mean."""
    few = build_day_table(_log(_entry(TUESDAY, _variant(2.0, count=99), _variant(2.1))), _experiment()).newest_rows[0]
    assert (few.cells[0].is_uncertain, few.cells[1].is_uncertain, few.cells[1].difference) == (True, False, "")
    none = build_day_table(_log(_entry(TUESDAY, _variant(None, count=0), _variant(2.1))), _experiment()).newest_rows[0]
    assert (none.cells[0].mean, none.cells[0].count, none.cells[1].difference) == ("–", "n = 0", "")


def test_means_over_too_few_students_are_not_displayed() -> None:
    """Ten responses per student: 341 students need 3410 responses. Neither sentence nor remark has the mean."""
    table = build_day_table(_log(BROKEN), _experiment(), min_students=341)
    (row,) = table.newest_rows
    assert (row.cells[1].mean, row.cells[1].difference, row.remarks, table.sentences) == ("–", "", (), ())
    assert not row.is_unusual
    assert build_day_table(_log(BROKEN), _experiment(), min_students=340).newest_rows[0].cells[1].is_unusual


def test_a_difference_from_a_hidden_mean_is_hidden_too() -> None:
    """Otherwise the control's mean could be computed from the treatment's mean and the difference."""
    entry = _entry(TUESDAY, _variant(2.05, count=400), _variant(2.5))
    hidden, shown = (
        build_day_table(_log(entry), _experiment(), min_students).newest_rows[0].cells for min_students in (50, 40)
    )
    assert [(cell.mean, cell.difference) for cell in hidden] == [("–", ""), ("2.50", "")]
    assert shown[1].difference.replace("\u202f", " ") == "+22 %"


def test_means_over_too_few_students_have_no_mark() -> None:
    """As in the table; marks of other remarks remain."""
    log = _log(replace(BROKEN, remarks=(*BROKEN.remarks, DayRemark("drop", "only 600 responses", "treatment"))))
    assert [mark.kind for mark in list_day_marks(log, _experiment(), 341)] == ["drop"]
    assert [mark.kind for mark in list_day_marks(log, _experiment(), 340)] == ["left_band", "drop"]


def test_marks_are_at_changes_and_in_the_middle_of_unusual_days() -> None:
    """Incomplete days have no mark."""
    change = DayRemark("share_change", "shares: 0.5 → 0.9", at_ms=TUESDAY * DAY_MS + HOUR_MS)
    partial = DayRemark("partial", "not over yet: until 20:00")
    marks = list_day_marks(_log(replace(BROKEN, remarks=(*BROKEN.remarks, partial, change))), _experiment())
    assert [(mark.time_ms - TUESDAY * DAY_MS, mark.kind, mark.label) for mark in marks] == [
        (HOUR_MS, "share_change", "shares: 0.5 → 0.9"),
        (DAY_MS // 2, "left_band", "treatment: mean outside its band"),
    ]
    others = list_day_marks(_log(BROKEN), _experiment(), variants={"control", "other"})
    assert [mark.kind for mark in others if mark.kind == "left_band"] == []


def test_the_rendered_table_has_rows_remarks_and_the_earlier_days_folded() -> None:
    """Texts are escaped."""
    entries = [_entry(TUESDAY - number, _variant(2.0), _variant(2.1)) for number in range(15, 0, -1)]
    broken = replace(BROKEN, remarks=(*BROKEN.remarks, DayRemark("criteria_change", "mde <b>")))
    table = build_day_table(_log(*entries, broken), _experiment())
    template = TEMPLATE_ENVIRONMENT.from_string(
        '{% from "days.html" import day_table, day_sentences %}{{ day_sentences(days) }}{{ day_table(days) }}'
    )
    page = template.render(days=table)
    assert page.count('<th scope="row">') == 16
    assert "<mark>1.20</mark>" in page
    assert "Tuesday <small>24 Nov</small>" in page
    assert "mde &lt;b&gt;" in page
    assert page.index("<details") > page.index("Tuesday <small>24 Nov")
    assert "2 earlier days" in page
    assert page.count("instead of the usual") == 1


@pytest.mark.parametrize(
    ("spec", "population", "noun"),
    [
        (MetricSpec("dcg@5", "dcg", 5), "rated", "rated responses"),
        (MetricSpec("dcg@5", "dcg", 5), "all", "responses"),
        (MetricSpec("latency_ms", "latency_ms"), "rated", "responses"),
    ],
)
def test_sentences_name_the_responses_behind_the_mean(spec: MetricSpec, population: Population, noun: str) -> None:
    """With all responses as the population, unrated responses are in the mean of a ranking metric, too."""
    log = replace(_log(BROKEN, metric=spec.name), population=population)
    (sentence,) = describe_unusual_days(log, _experiment(spec))
    assert sentence.replace("\u202f", " ").endswith(f", over 3 400 {noun}.")


def test_notes_name_the_unit_of_the_experiment() -> None:
    """Classes are groups, and not students."""
    notes = build_day_table(_log(BROKEN), replace(_experiment(), unit_noun="group")).notes
    assert "The effect that is judged is over groups with complete exposure windows." in notes[1]
    assert "student" not in " ".join(notes)


def test_without_days_the_table_explains_why() -> None:
    """Before the first response, or with half-lives of weeks only."""
    table = build_day_table(_log(), _experiment())
    assert table.newest_rows == ()
    assert "There is no day with responses yet" in table.notes[0]
