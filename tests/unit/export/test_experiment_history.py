"""Changed, incomplete and archived experiments in terminal, page, JSON and metrics."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.exposition import generate_latest
from rich.console import Console

from monitor.analysis import BackfillProgress, ExperimentHistory, ExperimentSummary, StoreSummary
from monitor.clock import HOUR_MS
from monitor.config import ExperimentChange
from monitor.export import ExperimentsCollector, render_summary, render_verdicts
from tests.support.pages import render_experiment, render_list
from tests.support.student_groups import SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, sum_students, time_after_days
from tests.support.units import analyze
from tests.unit.export.test_export import CONTROL, DCG

CHANGED_MS = time_after_days(5) + 9 * HOUR_MS
NOW_MS = time_after_days(14)
CHANGED = ExperimentHistory(
    declared_at_ms=time_after_days(0),
    definition_version=2,
    definition_since_ms=CHANGED_MS,
    changes=(ExperimentChange(CHANGED_MS, "criteria", "mde 0.05 → 0.02"),),
    complete_since_ms=time_after_days(1),
    backfill=BackfillProgress("running", 0.434),
    is_previous_definition=True,
)
ARCHIVED = ExperimentHistory(archived_at_ms=CHANGED_MS)
INCOMPLETE = ExperimentHistory(backfill=BackfillProgress("running", 0.434))
REMARKS = (
    "Decision criteria changed on 2026-01-06: mde 0.05 → 0.02.",
    "Complete since 2026-01-02 00:00 UTC: Kafka no longer had earlier events.",
    "Numbers of the previous definition, up to 2026-01-06 09:00 UTC; the new definition is 43 % filled.",
)


def _experiment(name: str, history: ExperimentHistory) -> ExperimentSummary:
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, history=history)
    analysis = analyze(SENSITIVE_EXPERIMENT, students, NOW_MS)
    variants = {"control": CONTROL, "treatment": CONTROL}
    return ExperimentSummary(name, "control", "dcg@5", 0, variants, analysis, (DCG,), history=history)


def _summary(**histories: ExperimentHistory) -> StoreSummary:
    return StoreSummary(NOW_MS, {name: _experiment(name, history) for name, history in histories.items()})


def _print(renderable: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=1000).print(renderable)
    return out.getvalue()


def _status(summary: StoreSummary) -> str:
    return _print(render_summary(summary, now_ms=NOW_MS))


def _page(summary: StoreSummary) -> str:
    return render_experiment(summary, now_ms=NOW_MS)


def _scrape(summary: StoreSummary) -> str:
    return generate_latest(ExperimentsCollector(lambda: summary, 1)).decode()


class TestChangedExperiments:
    """Remarks beside the verdict."""

    @pytest.mark.parametrize("remark", REMARKS)
    def test_remarks_are_shown_wherever_a_verdict_is(self, remark: str) -> None:
        """In `status`, `verdict`, on the page and in JSON."""
        summary = _summary(ranker=CHANGED)
        verdict = _print(render_verdicts(summary.experiments["ranker"], {"treatment": ()}))
        notes = " ".join(note["text"] for note in summary.verdict_json("ranker")["verdict"]["treatment"]["notes"])
        for text in (_status(summary), _page(summary), verdict, notes):
            assert remark in text

    def test_json_has_the_declaration_with_all_changes(self) -> None:
        """Also changes before the first response, which no verdict names."""
        summary = _summary(ranker=CHANGED)
        for content in (summary.to_json()["experiments"]["ranker"], summary.verdict_json("ranker")):
            assert content["archived_at"] is None
            assert content["declaration"] == {
                "declared_at": "2026-01-01T00:00:00.000Z",
                "definition_version": 2,
                "definition_since": "2026-01-06T09:00:00.000Z",
                "is_previous_definition": True,
                "complete_since": "2026-01-02T00:00:00.000Z",
                "backfill": {"state": "running", "share": 0.434, "reason": None},
                "changes": [{"at": "2026-01-06T09:00:00.000Z", "kind": "criteria", "text": "mde 0.05 → 0.02"}],
            }

    def test_an_experiment_without_history_has_no_remark(self) -> None:
        """Nothing was changed, and nothing is missing."""
        summary = _summary(ranker=ExperimentHistory())
        assert "changed" not in _status(summary)
        assert "filled" not in _page(summary)

    def test_frozen_numbers_have_no_newest_event_in_prometheus(self) -> None:
        """An alert would take them for a variant without events."""
        assert "abmonitor_variant_last_event_timestamp_seconds{" in _scrape(_summary(ranker=ExperimentHistory()))
        lines = _scrape(_summary(ranker=CHANGED))
        assert "abmonitor_responses{" in lines
        assert "abmonitor_variant_last_event_timestamp_seconds{" not in lines


def test_crossovers_of_a_dropped_variant_are_not_exported() -> None:
    """Its students may get another variant, which is no defect."""
    summary = _summary(ranker=ExperimentHistory())
    experiment = summary.experiments["ranker"]
    assert experiment.analysis is not None
    verdict = experiment.analysis.verdicts["treatment"]
    dropped = replace(verdict, evidence=structs.replace(verdict.evidence, treatment="dropped", crossovers=90))
    comparisons = dict.fromkeys(("treatment", "dropped"), experiment.analysis.comparisons["treatment"])
    verdicts = {"treatment": verdict, "dropped": dropped}
    analysis = replace(experiment.analysis, verdicts=verdicts, comparisons=comparisons)
    for shares, crossovers in (({}, 90), ({"control": 0.5, "treatment": 0.5}, 0)):
        changed = replace(experiment, analysis=analysis, intended_shares=shares)
        lines = _scrape(replace(summary, experiments={"ranker": changed}))
        assert f'abmonitor_crossover_students{{experiment="ranker"}} {crossovers}.0' in lines


class TestIncompleteExperiments:
    """An experiment that is being filled."""

    def test_incomplete_numbers_are_marked_everywhere(self) -> None:
        """No effect is presented as a result."""
        summary = _summary(ranker=INCOMPLETE)
        assert "treatment – Incomplete, so no decision yet" in _status(summary)
        assert "<h2>Incomplete, so no decision yet<" in _page(summary)
        for text in (_status(summary), _page(summary)):
            assert "earlier events in Kafka are not counted yet: the experiment is 43 % filled." in text

    def test_the_split_of_incomplete_numbers_is_not_judged(self) -> None:
        """A line "as intended" would claim a test that was not made."""
        texts = [
            _print(render_verdicts(_summary(ranker=history).experiments["ranker"], {"treatment": ()}))
            for history in (ExperimentHistory(), INCOMPLETE)
        ]
        assert ["Split of students" in text for text in texts] == [True, False]

    def test_the_sample_ratio_of_incomplete_numbers_is_not_exported(self) -> None:
        """The alert on the sample ratio must not fire."""
        assert "abmonitor_sample_ratio_log_e{" not in _scrape(_summary(ranker=INCOMPLETE))


class TestArchivedExperiments:
    """Archived experiments are apart from the running ones."""

    SUMMARY = _summary(running=ExperimentHistory(), old=ARCHIVED)

    def test_status_has_a_line_with_the_verdict(self) -> None:
        """No table of variants."""
        lines = _status(self.SUMMARY).splitlines()
        (line,) = [line for line in lines if line.startswith("old:")]
        assert "treatment – Ship: +" in line
        assert "Archived on 6 Jan 2026, 09:00 UTC, with the newest event of 1 Jan 2026, 00:01 UTC" in line
        assert sum("Share of rated responses" in line for line in lines) == 1

    def test_status_of_an_archived_experiment_alone_is_complete(self) -> None:
        """With `--experiment` a reader asks for the numbers."""
        text = _status(_summary(old=ARCHIVED))
        assert "Share of rated responses" in text
        assert "Archived on 6 Jan 2026" in text

    def test_the_page_lists_them_in_a_section_of_their_own(self) -> None:
        """Verdict and numbers stay readable."""
        running, _, archived = render_list(self.SUMMARY).partition('<section id="archived">')
        assert ">running</a>" in running
        assert ">old<" not in running
        assert ">old</a>" in archived
        assert "Archived" not in render_list(_summary(running=ExperimentHistory()))
        assert "<h2>Ship<" in render_experiment(_summary(old=ARCHIVED))

    def test_verdict_and_json_have_the_time_of_archiving(self) -> None:
        """A reader knows that later events are missing."""
        text = _print(render_verdicts(self.SUMMARY.experiments["old"], {"treatment": ()}))
        assert "Archived on 6 Jan 2026, 09:00 UTC" in text
        assert self.SUMMARY.verdict_json("old")["archived_at"] == "2026-01-06T09:00:00.000Z"
        assert self.SUMMARY.to_json()["experiments"]["old"]["archived_at"] == "2026-01-06T09:00:00.000Z"

    def test_they_are_not_exported_to_prometheus(self) -> None:
        """So no alert can fire."""
        text = _scrape(self.SUMMARY)
        assert 'experiment="running"' in text
        assert 'experiment="old"' not in text

    def test_an_archived_experiment_without_events_is_described(self) -> None:
        """It was archived before any response arrived."""
        empty = {name: replace(CONTROL, last_event_at_ms=None) for name in ("control", "treatment")}
        experiment = replace(self.SUMMARY.experiments["old"], variants=empty)
        assert "without any event" in _status(StoreSummary(0, {"old": experiment}))
