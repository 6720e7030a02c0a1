"""The report from a real store: what was noted, what is worked out again, and the page in a real browser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from monitor.analysis.snapshots import take_snapshot
from monitor.clock import HOUR_MS
from monitor.config import DecaySpec
from monitor.errors import UnknownExperiment
from monitor.events import Feedback, Response
from monitor.export.report_data import ReportReader, read_report_data
from monitor.state import SnapshotLog, StoreReader
from monitor.web.experiment_report import render_experiment_report
from tests.servers.browser import ColorScheme, browser_page
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, write_config
from tests.support.oracle import DAY_MS
from tests.support.oracle import compute_expected_responses as oracle_judge
from tests.support.store_bench import DECISION_EXPERIMENT, HOUR_OF_DAY_9, StoreBench, student_traffic, take_snapshots
from tests.support.streams import HOUR, START
from tests.unit.web.test_experiment_report import Page

CONFIG = """
[store]
url = "<store>"
[[experiments]]
name = "ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
mde = 0.3
decay = ["6h", "24h"]
"""


class TestReportData:
    """The report data read from a store."""

    def test_the_report_is_equal_on_one_and_three_shards(self, redis_server: RedisServer) -> None:
        """The whole page, history included."""
        pages = []
        for shards in (1, 3):
            bench = StoreBench(redis_server, DECISION_EXPERIMENT, shards)
            bench.apply([student_traffic()])
            take_snapshots(bench, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 12, HOUR_OF_DAY_9 + 13)
            pages.append(render_experiment_report(read_report_data(bench.reader, DECISION_EXPERIMENT)))
        assert pages[0] == pages[1]
        assert "Points recorded live: 3" in pages[0]

    def test_decayed_means_come_from_snapshots_and_gaps_are_recomputed(self, redis_server: RedisServer) -> None:
        """Recomputed means equal those of `status --as-of`."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        hours = range(HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 30, 2)
        take_snapshots(bench, *hours)
        report = read_report_data(bench.reader, DECISION_EXPERIMENT)
        means_from_snapshots = {means.at_ms: means for means in report.decayed_means if means.from_snapshot}
        assert set(means_from_snapshots) == {hour * HOUR_MS for hour in hours}
        assert not [
            means
            for means in report.decayed_means
            if not means.from_snapshot and HOUR_OF_DAY_9 * HOUR_MS < means.at_ms < (HOUR_OF_DAY_9 + 28) * HOUR_MS
        ]
        for means in [
            *list(means_from_snapshots.values())[:3],
            *[means for means in report.decayed_means if not means.from_snapshot][-4:],
        ]:
            snapshot = take_snapshot(bench.reader.read_summary(means.at_ms).experiments["ranker"])
            assert snapshot is not None
            assert means.means["24h"] == {
                name: variant.decayed_means["24h"] for name, variant in snapshot.variants.items()
            }
        assert [means.at_ms for means in report.decayed_means] == sorted(means.at_ms for means in report.decayed_means)
        assert len(report.decayed_means) < 90

    def test_a_long_history_is_thinned_out(self, redis_server: RedisServer) -> None:
        """At most 600 snapshots are drawn over the whole time; verdicts are listed from all snapshots."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        first_ms = (HOUR_OF_DAY_9 - 1_500) * HOUR_MS - DAY_MS // 2
        early_traffic = [
            Response(f"e-{number}", first_ms, "ranker", "control", (), None, f"early-{number}") for number in range(20)
        ]
        bench.apply([early_traffic, student_traffic()])
        take_snapshots(bench, HOUR_OF_DAY_9)
        history = SnapshotLog(bench.store)
        snapshot = bench.reader.read_snapshots("ranker")[HOUR_OF_DAY_9]
        for hour in range(HOUR_OF_DAY_9 - 1_500, HOUR_OF_DAY_9):
            history.add(bench.experiment_number, hour, snapshot)
        report = read_report_data(bench.reader, DECISION_EXPERIMENT)
        assert len(report.snapshots) == 1_501
        snapshot_times = [means.at_ms for means in report.decayed_means if means.from_snapshot]
        assert (len(snapshot_times), snapshot_times[0]) == (501, (HOUR_OF_DAY_9 - 1_500) * HOUR_MS)

    def test_snapshots_before_the_first_entry_day_are_not_shown(self, redis_server: RedisServer) -> None:
        """A single response three weeks before the others begins no chart."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        stray_hour = HOUR_OF_DAY_9 - 30 * 24
        stray_response = Response("early", stray_hour * HOUR_MS, "ranker", "control", (), None, "early")
        bench.apply([[stray_response], student_traffic()])
        take_snapshots(bench, stray_hour, HOUR_OF_DAY_9)
        assert list(bench.reader.read_snapshots("ranker")) == [stray_hour, HOUR_OF_DAY_9]
        report = read_report_data(bench.reader, DECISION_EXPERIMENT)
        assert list(report.snapshots) == [HOUR_OF_DAY_9]
        assert min(means.at_ms for means in report.decayed_means) > (HOUR_OF_DAY_9 - 10 * 24) * HOUR_MS

    def test_decayed_means_are_not_recomputed_from_expired_buckets(self, redis_server: RedisServer) -> None:
        """Shortly after `retention` a decayed mean would rest on the wrong responses; an hour forgets faster."""
        experiment = replace(
            DECISION_EXPERIMENT,
            retention_ms=6 * DAY_MS,
            decay=(DecaySpec("1h", HOUR), DecaySpec("6h", 6 * HOUR), *DECISION_EXPERIMENT.decay[2:]),
        )
        bench = StoreBench(redis_server, experiment)
        bench.apply([student_traffic()])
        report = read_report_data(bench.reader, experiment)
        oldest_bucket_ms = report.as_of_ms - 6 * DAY_MS
        first_ms = {
            decay: min(means.at_ms for means in report.decayed_means if decay in means.means) for decay in ("1h", "6h")
        }
        assert oldest_bucket_ms + 10 * HOUR <= first_ms["1h"] < oldest_bucket_ms + 10 * HOUR + 4 * HOUR
        assert oldest_bucket_ms + 60 * HOUR <= first_ms["6h"] < oldest_bucket_ms + 60 * HOUR + 4 * HOUR
        assert [list(means.means) for means in report.decayed_means][-1] == ["1h", "6h", "reciprocal-10d"]

    def test_snapshots_of_another_primary_metric_are_ignored(self, redis_server: RedisServer) -> None:
        """After a change of the primary metric, old snapshots are about the previous metric."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        take_snapshots(bench, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 5)
        experiment = replace(DECISION_EXPERIMENT, primary="cg@5")
        reader = StoreReader(
            bench.store, replace(bench.settings, experiments=(experiment,)), bench.metadata.numbers, lambda: 0
        )
        report = read_report_data(reader, experiment)
        assert report.snapshots == {}
        assert "No history is stored" in render_experiment_report(report)

    def test_decayed_means_over_few_students_are_left_out(self, redis_server: RedisServer) -> None:
        """Until there are enough students; also those from snapshots."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        take_snapshots(bench, HOUR_OF_DAY_9 - 8 * 24, HOUR_OF_DAY_9)
        report = read_report_data(bench.reader, DECISION_EXPERIMENT, 30)
        first_ms = {
            name: next(means.at_ms for means in report.decayed_means if name in means.means["24h"])
            for name in ("control", "treatment")
        }
        for name, at_ms in first_ms.items():
            threshold_ms = next(split.as_of_ms for split in report.daily_splits if split.students[name] >= 30)
            assert threshold_ms - DAY_MS < at_ms <= threshold_ms
        assert report.decayed_means[0].at_ms < min(first_ms.values())

    def test_the_design_effect_equals_that_computed_from_events(self, redis_server: RedisServer) -> None:
        """The variance of the mean over students of one variant, divided by that over responses."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        events = student_traffic()
        bench.apply([events])
        graded_responses = oracle_judge(DECISION_EXPERIMENT, events)
        variants_by_student: dict[str, set[str]] = defaultdict(set)
        for number, graded in enumerate(graded_responses):
            variants_by_student[graded.response.user_id or str(number)].add(graded.response.variant)
        values: dict[str, list[float]] = defaultdict(list)
        for number, graded in enumerate(graded_responses):
            value = graded.metrics.get("dcg@5")
            if graded.response.variant == "treatment" and value is not None:
                values[graded.response.user_id or str(number)].append(value)
        single = [
            student_values
            for student, student_values in values.items()
            if variants_by_student[student] == {"treatment"}
        ]
        mean = sum(map(sum, single)) / sum(map(len, single))
        spread = sum((sum(student_values) - mean * len(student_values)) ** 2 for student_values in single)
        units = sum(variants_by_student[student] == {"treatment"} for student in values)
        clustered = units / (units - 1) * spread / sum(map(len, single)) ** 2
        all_values = [value for student_values in values.values() for value in student_values]
        expected = clustered / (float(np.var(all_values, ddof=1)) / len(all_values))
        design_effect = (
            bench.reader.read_summary().experiments["ranker"].variants["treatment"].metrics["dcg@5"].design_effect
        )
        assert expected > 1
        assert design_effect == pytest.approx(expected, rel=1e-6)

    def test_a_past_report_has_the_effect_of_that_step(self, redis_server: RedisServer) -> None:
        """Charts end at that time, and the guardrails are those of that time."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        take_snapshots(bench, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 5)
        present = read_report_data(bench.reader, DECISION_EXPERIMENT)
        step = present.interim_analyses[-3]
        past = read_report_data(bench.reader, DECISION_EXPERIMENT, as_of_ms=step.as_of_ms)
        assert past.latest_analysis.verdicts["treatment"].primary == step.verdicts["treatment"].primary
        assert past.latest_analysis.verdicts["treatment"].guardrails == step.verdicts["treatment"].guardrails
        assert [analysis.as_of_ms for analysis in past.interim_analyses] == [
            analysis.as_of_ms for analysis in present.interim_analyses[:-2]
        ]
        times = [means.at_ms for means in past.decayed_means] + [split.as_of_ms for split in past.daily_splits]
        assert max(times) <= step.as_of_ms
        assert past.is_past

    def test_past_results_are_computed_again_after_ten_minutes(self, redis_server: RedisServer) -> None:
        """Late events may have changed them; the present is always new."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        now_s = 0.0
        reports = ReportReader(lambda: bench.reader, 1, lambda: now_s)
        first = reports.read("ranker")
        for seconds, is_same in ((599.0, True), (601.0, False)):
            now_s = seconds
            report = reports.read("ranker")
            assert (report.interim_analyses[0] is first.interim_analyses[0]) == is_same
            assert report.interim_analyses[0] == first.interim_analyses[0]
            assert report.latest_analysis is not first.latest_analysis
        with pytest.raises(UnknownExperiment):
            reports.read("nothing")

    def test_the_reader_of_one_experiment_has_equal_results(self, redis_server: RedisServer) -> None:
        """Also the time of the newest event, which another experiment may have."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([student_traffic()])
        other = replace(DECISION_EXPERIMENT, name="other")
        settings = replace(bench.settings, experiments=(DECISION_EXPERIMENT, other))
        reader = StoreReader(bench.store, settings, {**bench.metadata.numbers, "other": 99}, lambda: 0)
        whole, selected = reader.read_summary(), reader.select_experiment("other").read_summary()
        assert selected.as_of_ms == whole.as_of_ms > 0
        assert selected.experiments == {"other": whole.experiments["other"]}

    def test_an_empty_store_has_a_report(self, redis_server: RedisServer) -> None:
        """The page states that there are no data."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        assert "No data yet" in render_experiment_report(read_report_data(bench.reader, DECISION_EXPERIMENT))

    def test_recent_traffic_of_an_empty_store_covers_the_last_two_hours(self, redis_server: RedisServer) -> None:
        """Not the hours before 1970."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        summary = StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: 10**12).read_summary()
        (experiment,) = summary.experiments.values()
        for variant in experiment.variants.values():
            assert variant.traffic is not None
            assert variant.traffic.until_ms == 10**12 + 1
            assert 0 < variant.traffic.until_ms - variant.traffic.since_ms <= 2 * HOUR_MS

    def test_a_better_order_of_worse_items_is_reported_as_a_disagreement(self, redis_server: RedisServer) -> None:
        """docs/metrics.md's example with students: grades 3, 0, 0 against 2, 3, 3 raise nDCG and lower DCG."""
        bench = StoreBench(redis_server, DECISION_EXPERIMENT)
        bench.apply([list(_ordered())])
        page = Page(render_experiment_report(read_report_data(bench.reader, DECISION_EXPERIMENT)))
        assert "dcg@5 is worse with treatment: −" in page.text
        assert "Metrics disagree. ndcg@3 and dcg@5 disagree: ndcg@3 is higher (+" in page.text
        assert "dcg@5 is lower (−" in page.text
        assert "Use dcg@5." in page.text


def _ordered() -> Iterator[Response | Feedback]:
    """Yield answers that find little in the best order, and answers that find more in another; some vary."""
    grades = {"control": ((2, 3, 3), (2, 3, 2)), "treatment": ((3, 0, 0), (3, 1, 0))}
    items = ("video-1", "video-2", "video-3")
    for student in range(240):
        variant = ("control", "treatment")[student % 2]
        at_ms, identity, user = START + student * HOUR // 2, f"r-{student}", f"student-{student}"
        yield Response(identity, at_ms, "ranker", variant, items, None, user)
        for item, grade in zip(items, grades[variant][student // 2 % 2], strict=True):
            yield Feedback(f"f-{student}-{item}", identity, at_ms + 60_000, "rating", user, item, float(grade))
    yield Response("last", START + 30 * DAY_MS, "ranker", "control", items, None, "student-last")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Path:
    """Return the report that the command writes after a replay of two simulated weeks."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp("report")
    events = directory / "events.jsonl"
    traffic = ["--responses", "12000", "--students", "4000", "--days", "14", "--effect=treatment=0.6"]
    assert ab_monitor("simulate", *traffic, "--out", events).returncode == 0
    config = write_config(directory / "config.toml", CONFIG, [("store", redis_server.url)])
    assert ab_monitor("replay", "--config", config, events).returncode == 0
    report_file = directory / "report.html"
    result = ab_monitor("report", "ranker-v2", "--config", config, "--html", report_file)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    return report_file


class TestReportCommand:
    """`ab-monitor report`."""

    def test_the_report_has_the_sentences_of_the_verdict_command(self, page: Path) -> None:
        """What is known and what happens next, the reasons and the notes."""
        verdict_output = ab_monitor("verdict", "ranker-v2", "--config", page.parent / "config.toml").stdout
        page_text = Page(page.read_text(encoding="utf-8")).text
        lines = [line.strip() for line in verdict_output.splitlines()]
        prefixes = ("Known: ", "Next: ", "Reason: ", "Note: ")
        sentences = [line.removeprefix(prefix) for line in lines for prefix in prefixes if line.startswith(prefix)]
        assert len(sentences) >= 2
        assert all(sentence in page_text for sentence in sentences)

    def test_a_replay_stores_snapshots_for_the_report(self, page: Path, redis_server: RedisServer) -> None:
        """Also that of a replay, now and then; what is told of its last hours was noted."""
        (history,) = redis_server.client().scan_iter("abm:{0}:0:hourly_snapshots:*")
        assert redis_server.client().hlen(history) >= 1
        assert "No history is stored" not in page.read_text(encoding="utf-8")

    def test_the_report_can_be_written_to_stdout(self, page: Path) -> None:
        """With `--html -`."""
        result = ab_monitor("report", "ranker-v2", "--config", page.parent / "config.toml", "--html", "-")
        assert result.stdout == page.read_text(encoding="utf-8")

    def test_wrong_arguments_are_reported_in_one_line(self, page: Path, tmp_path: Path) -> None:
        """An unknown experiment, and a directory as output file."""
        config = page.parent / "config.toml"
        result = ab_monitor("report", "ranker", "--config", config, "--html", tmp_path / "x")
        assert (result.returncode, result.stderr) == (
            2,
            'ab-monitor: report E: got "ranker", expected one of ranker-v2; did you mean ranker-v2?\n',
        )
        result = ab_monitor("report", "ranker-v2", "--config", config, "--html", tmp_path)
        assert (result.returncode, result.stderr) == (
            2,
            f"ab-monitor: --html: the file {tmp_path} cannot be written: Is a directory\n",
        )


class TestBrowser:
    """The page in a browser, under its Content-Security-Policy."""

    def test_the_browser_draws_all_charts(self, page: Path) -> None:
        """The policy of the file allows its script; charts below the window are drawn when the reader comes near."""
        with browser_page() as browser:
            browser.goto(f"file://{page}")
            figures = browser.locator("figure.chart")
            assert figures.count() == 7
            assert browser.locator("figure.drawn").count() < 7
            for details in browser.locator("summary").all():
                details.click()
            for figure in figures.all():
                figure.scroll_into_view_if_needed()
                expect(figure.locator("svg")).to_be_visible()

    @pytest.mark.parametrize("width", [1000, 400])
    def test_the_report_renders_light_and_dark(self, page: Path, width: int) -> None:
        """A screenshot comes out, and is more than an empty page; the reader's scheme is followed."""
        pictures = []
        schemes: tuple[ColorScheme, ...] = "light", "dark"
        for scheme in schemes:
            with browser_page(width=width, height=4000, color_scheme=scheme) as browser:
                browser.goto(f"file://{page}")
                pictures.append(browser.screenshot())
            assert len(pictures[-1]) > 60_000
        assert pictures[0] != pictures[1]
