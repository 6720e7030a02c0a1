"""The list of experiments as HTML: what is shown, in which order, and which rows a filter leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from monitor.analysis import ExperimentSummary, StoreSummary
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import DisplaySettings
from monitor.errors import UsageError
from monitor.export import Headline, RelativeBounds, describe_headlines
from monitor.export.freshness import Freshness
from monitor.stats import ExperimentHistory
from monitor.web.effect_bar import choose_scale_limit
from monitor.web.list_page import list_page
from tests.support.pages import NO_RECORDS, render_list
from tests.support.student_groups import (
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    make_students,
    sum_students,
    time_after_days,
)
from tests.support.units import analyze
from tests.unit.export.test_export import CONTROL, DCG

NOW_MS = time_after_days(14.0)
EQUAL_STUDENTS = (*make_students("control", 1.5, seed=1), *make_students("treatment", 1.52, seed=2))


def _experiment(name: str, *, has_effect: bool = False) -> ExperimentSummary:
    students = STUDENTS_WITH_EFFECT if has_effect else EQUAL_STUDENTS
    analysis = analyze(SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, students), NOW_MS)
    variants = {"control": CONTROL, "treatment": CONTROL}
    return ExperimentSummary(name, "control", "dcg@5", 0, variants, analysis, (DCG,))


OPEN = _experiment("algebra")
DECIDED = replace(_experiment("zoo", has_effect=True), owner="Ann <a@b>", starts_at_ms=NOW_MS - 3 * DAY_MS)
EMPTY = ExperimentSummary("empty", "control", "dcg@5", 0, {}, None, (DCG,), starts_at_ms=NOW_MS - DAY_MS)
SUMMARY = StoreSummary(NOW_MS, {each.name: each for each in (OPEN, EMPTY, DECIDED)})


def _names(query: Mapping[str, str] | None = None, summary: StoreSummary = SUMMARY) -> list[str]:
    """Return the names in the list, from top to bottom."""
    return re.findall(r'<a href="/experiments/[^"]*">([^<]+)</a>', render_list(summary, NO_RECORDS, NOW_MS, query))


def _row(name: str, page: str) -> str:
    return page.partition(f'<tbody id="experiment-{name}">')[2].partition("</tbody>")[0]


def _headline(experiment: ExperimentSummary) -> Headline:
    (headline,) = describe_headlines(experiment)
    return headline


class TestRows:
    """What a row has."""

    def test_a_row_begins_with_the_state_and_the_judged_effect(self) -> None:
        """The texts of the headline, which all outputs share."""
        headline, row = _headline(DECIDED), _row("zoo", render_list(SUMMARY, NO_RECORDS, NOW_MS))
        assert headline.effect is not None
        assert f'<span class="badge good">{headline.title}</span>' in row
        assert f'<span class="number">{headline.effect}</span>' in row

    def test_a_row_has_owner_and_age(self) -> None:
        """The owner is text, not markup; the age is that on the page, since the first student came."""
        row = _row("zoo", render_list(SUMMARY, NO_RECORDS, NOW_MS))
        assert "owner: Ann &lt;a@b&gt;" in row
        assert re.search(r'data-label="running">1[34]\u202fd<small>since <time', row)

    def test_the_age_before_the_first_student_is_that_of_the_configured_start(self) -> None:
        """An experiment without traffic should have begun."""
        assert ">24\u202fh<small>since <time" in _row("empty", render_list(SUMMARY, NO_RECORDS, NOW_MS))

    def test_a_start_in_the_future_is_announced(self) -> None:
        """Otherwise, an empty row would look like a defect."""
        summary = StoreSummary(NOW_MS, {"empty": replace(EMPTY, starts_at_ms=NOW_MS + 5 * DAY_MS)})
        assert "starts in 5\u202fd" in render_list(summary, NO_RECORDS, NOW_MS)

    def test_a_wrong_split_is_marked(self) -> None:
        """Nobody should read the effect of such an experiment."""
        assert DECIDED.analysis is not None
        ratio = replace(DECIDED.analysis.sample_ratio, mismatch=True)
        wrong = replace(DECIDED, analysis=replace(DECIDED.analysis, sample_ratio=ratio))
        assert "as intended" in _row("zoo", render_list(SUMMARY))
        assert "wrong (SRM)" in _row("zoo", render_list(StoreSummary(0, {"zoo": wrong})))

    def test_a_stale_experiment_is_marked_and_the_service_is_not_green(self) -> None:
        """A page with old numbers must not look healthy."""
        health = replace(NO_RECORDS, freshness={"zoo": Freshness(NOW_MS - HOUR_MS, HOUR_MS, 40.0)})
        page = render_list(SUMMARY, health, NOW_MS)
        assert "about 40 responses were due since" in _row("zoo", page)
        assert 'class="fact stale"' in _row("zoo", page)
        assert 'class="fact stale"' not in _row("algebra", page)
        assert ">ready</a>" not in page

    def test_archived_experiments_are_apart(self) -> None:
        """Also if all are archived."""
        old = replace(OPEN, name="old", history=ExperimentHistory(archived_at_ms=NOW_MS))
        running, _, archived = render_list(StoreSummary(0, {"old": old, "zoo": DECIDED})).partition('id="archived"')
        assert (">old</a>" in running, ">old</a>" in archived) == (False, True)
        page = render_list(StoreSummary(0, {"old": old}))
        assert ">old</a>" in page
        assert "No experiment is declared" not in page


class TestFilters:
    """The parameters of the query."""

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ({}, ["zoo", "algebra", "empty"]),
            ({"sort": "name"}, ["algebra", "empty", "zoo"]),
            ({"sort": "effect"}, ["zoo", "algebra", "empty"]),
            ({"sort": "start"}, ["empty", "algebra", "zoo"]),
            ({"q": "ANN"}, ["zoo"]),
            ({"q": "e"}, ["algebra", "empty"]),
            ({"state": "ship"}, ["zoo"]),
            ({"state": "ship", "q": "alg"}, []),
        ],
    )
    def test_the_query_selects_and_sorts(self, query: Mapping[str, str], names: list[str]) -> None:
        """By name or owner, by state; decisions come first without an order."""
        assert _names(query) == names

    def test_harm_comes_before_gains(self) -> None:
        """It is more urgent."""
        assert DECIDED.analysis is not None
        (verdict,) = DECIDED.analysis.verdicts.values()
        verdicts = {"treatment": replace(verdict, state="stop_harm")}
        harmful = replace(DECIDED, name="harmful", analysis=replace(DECIDED.analysis, verdicts=verdicts))
        assert _names(summary=StoreSummary(0, {"zoo": DECIDED, "harmful": harmful})) == ["harmful", "zoo"]

    def test_stale_experiments_can_be_selected(self) -> None:
        """They may need help."""
        health = replace(NO_RECORDS, freshness={"zoo": Freshness(NOW_MS - HOUR_MS, HOUR_MS, 40.0)})
        page = render_list(SUMMARY, health, NOW_MS, {"state": "stale"})
        assert ">zoo</a>" in page
        assert ">algebra</a>" not in page

    @pytest.mark.parametrize("query", [{"state": "good"}, {"sort": "size"}])
    def test_an_unknown_value_is_an_error(self, query: Mapping[str, str]) -> None:
        """An empty list would be misleading."""
        with pytest.raises(UsageError, match="expected one of"):
            list_page(SUMMARY, NO_RECORDS, DisplaySettings(), NOW_MS, query)

    def test_few_experiments_need_no_filter(self) -> None:
        """Until somebody uses one."""
        assert "<form" not in render_list(SUMMARY)
        assert "<form" in render_list(SUMMARY, query={"sort": "name"})


@pytest.mark.parametrize(
    ("all_bounds", "limit"),
    [
        ([], 0.02),
        ([(None, None, None)], 0.02),
        ([(0.01, -0.01, 0.03)], 0.05),
        ([(0.01, -0.01, 0.03)] * 3 + [(0.04, -0.9, 0.9)], 0.05),
        ([(0.01, -0.01, 0.03), (0.2, None, None)], 0.5),
        ([(3.0, 1.0, 5.0)], 0.5),
    ],
)
def test_the_scale_fits_most_intervals(all_bounds: list[RelativeBounds], limit: float) -> None:
    """One young experiment must not make all other bars tiny."""
    assert choose_scale_limit(all_bounds) == limit
