"""The report from a real store: what was noted, what is worked out again, and the page in a real browser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor.analysis.snapshots import HOUR_MS, snapshot
from monitor.config import DecaySpec
from monitor.events import Feedback, Response
from monitor.export.report_data import account
from monitor.state import History, Reader
from monitor.web.experiment_report import render_experiment_report
from tests.integration.analysis.test_stored_verdicts import DECIDED, _traffic
from tests.integration.pipeline.test_exactness import Bench
from tests.integration.state.test_snapshot_log import DAY_9, _note
from tests.servers.chromium import dom, screenshot
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, write_config
from tests.support.oracle import DAY
from tests.support.oracle import judge as oracle_judge
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


class TestWhatIsTold:
    """The account of a store."""

    def test_shards_change_nothing(self, redis_server: RedisServer) -> None:
        """One or three: the same page, history included."""
        pages = []
        for shards in (1, 3):
            bench = Bench(redis_server, DECIDED, shards)
            bench.feed([_traffic()])
            _note(bench, DAY_9, DAY_9 + 12, DAY_9 + 13)
            pages.append(render_experiment_report(account(bench.reader, DECIDED)))
        assert pages[0] == pages[1]
        assert "Noted by the service when they passed: 3 of" in pages[0]

    def test_what_was_noted_is_shown_and_holes_are_filled(self, redis_server: RedisServer) -> None:
        """Noted times as they were noted; between them what `status --as-of` says."""
        bench = Bench(redis_server, DECIDED)
        bench.feed([_traffic()])
        hours = range(DAY_9, DAY_9 + 30, 2)
        _note(bench, *hours)
        told = account(bench.reader, DECIDED)
        noted = {each.at_ms: each for each in told.watched if each.noted}
        assert set(noted) == {hour * HOUR_MS for hour in hours}
        assert not [
            each for each in told.watched if not each.noted and DAY_9 * HOUR_MS < each.at_ms < (DAY_9 + 28) * HOUR_MS
        ]
        for each in [*list(noted.values())[:3], *[each for each in told.watched if not each.noted][-4:]]:
            then = snapshot(bench.reader.summary(each.at_ms).experiments["ranker"])
            assert then is not None
            assert each.means["24h"] == {name: variant.decayed["24h"] for name, variant in then.variants.items()}
        assert [each.at_ms for each in told.watched] == sorted(each.at_ms for each in told.watched)
        assert len(told.watched) < 90

    def test_of_years_some_are_shown(self, redis_server: RedisServer) -> None:
        """The whole time, but no more than a plot has room for; what was said is told of every hour."""
        bench = Bench(redis_server, DECIDED)
        bench.feed([_traffic()])
        _note(bench, DAY_9)
        history = History(bench.shards)
        taken = bench.reader.history("ranker")[DAY_9]
        for hour in range(DAY_9 - 1_500, DAY_9):
            history.add(bench.number, hour, taken)
        told = account(bench.reader, DECIDED)
        assert len(told.past) == 1_501
        noted = [each.at_ms for each in told.watched if each.noted]
        assert (len(noted), noted[0]) == (501, (DAY_9 - 1_500) * HOUR_MS)

    def test_nothing_is_worked_out_again_from_buckets_that_are_gone(self, redis_server: RedisServer) -> None:
        """Shortly after `retention` a decayed mean would rest on the wrong responses; an hour forgets faster."""
        short = replace(
            DECIDED, retention_ms=6 * DAY, decay=(DecaySpec("1h", HOUR), DecaySpec("6h", 6 * HOUR), *DECIDED.decay[2:])
        )
        bench = Bench(redis_server, short)
        bench.feed([_traffic()])
        told = account(bench.reader, short)
        kept_ms = told.as_of_ms - 6 * DAY
        first = {decay: min(each.at_ms for each in told.watched if decay in each.means) for decay in ("1h", "6h")}
        assert kept_ms + 10 * HOUR <= first["1h"] < kept_ms + 10 * HOUR + 4 * HOUR
        assert kept_ms + 60 * HOUR <= first["6h"] < kept_ms + 60 * HOUR + 4 * HOUR
        assert [list(each.means) for each in told.watched][-1] == ["1h", "6h", "reciprocal-10d"]

    def test_of_another_primary_metric_nothing_is_told(self, redis_server: RedisServer) -> None:
        """The primary metric may be changed; what was noted is about the one before."""
        bench = Bench(redis_server, DECIDED)
        bench.feed([_traffic()])
        _note(bench, DAY_9, DAY_9 + 5)
        other = replace(DECIDED, primary="cg@5")
        reader = Reader(bench.shards, replace(bench.settings, experiments=(other,)), bench.opened.numbers, lambda: 0)
        told = account(reader, other)
        assert told.past == {}
        assert "There is no history" in render_experiment_report(told)

    def test_means_of_few_students_are_left_out(self, redis_server: RedisServer) -> None:
        """Until there were so many; also of those that were noted."""
        bench = Bench(redis_server, DECIDED)
        bench.feed([_traffic()])
        _note(bench, DAY_9 - 8 * 24, DAY_9)
        told = account(bench.reader, DECIDED, 30)
        first = {
            name: next(each.at_ms for each in told.watched if name in each.means["24h"])
            for name in ("control", "treatment")
        }
        for name, at_ms in first.items():
            enough = next(split.at_ms for split in told.splits if split.students[name] >= 30)
            assert enough - DAY < at_ms <= enough
        assert told.watched[0].at_ms < min(first.values())

    def test_the_design_effect_is_that_of_the_responses(self, redis_server: RedisServer) -> None:
        """The variance of the mean over students who saw one variant, by that over responses; from the events."""
        bench = Bench(redis_server, DECIDED)
        events = _traffic()
        bench.feed([events])
        judged = oracle_judge(DECIDED, events)
        shown: dict[str, set[str]] = defaultdict(set)
        for number, each in enumerate(judged):
            shown[each.response.user_id or str(number)].add(each.response.variant)
        values: dict[str, list[float]] = defaultdict(list)
        for number, each in enumerate(judged):
            value = each.metrics.get("dcg@5")
            if each.response.variant == "treatment" and value is not None:
                values[each.response.user_id or str(number)].append(value)
        single = [found for student, found in values.items() if shown[student] == {"treatment"}]
        mean = sum(map(sum, single)) / sum(map(len, single))
        spread = sum((sum(found) - mean * len(found)) ** 2 for found in single)
        units = sum(shown[student] == {"treatment"} for student in values)
        clustered = units / (units - 1) * spread / sum(map(len, single)) ** 2
        everything = [value for found in values.values() for value in found]
        expected = clustered / (float(np.var(everything, ddof=1)) / len(everything))
        found = bench.reader.summary().experiments["ranker"].variants["treatment"].metrics["dcg@5"].design_effect
        assert expected > 1
        assert found == pytest.approx(expected, rel=1e-6)

    def test_an_empty_store_has_a_page_too(self, redis_server: RedisServer) -> None:
        """Nothing to tell yet."""
        bench = Bench(redis_server, DECIDED)
        assert "Nothing to tell yet" in render_experiment_report(account(bench.reader, DECIDED))

    def test_the_traffic_of_an_empty_store_is_that_of_the_last_hours(self, redis_server: RedisServer) -> None:
        """Not of those before 1970."""
        bench = Bench(redis_server, DECIDED)
        summary = Reader(bench.shards, bench.settings, bench.opened.numbers, lambda: 10**12).summary()
        (experiment,) = summary.experiments.values()
        for variant in experiment.variants.values():
            assert variant.traffic is not None
            assert variant.traffic.until_ms == 10**12 + 1
            assert 0 < variant.traffic.until_ms - variant.traffic.since_ms <= 2 * HOUR_MS

    def test_more_ordered_and_less_good_is_told_apart(self, redis_server: RedisServer) -> None:
        """docs/metrics.md's example with students: grades 3, 0, 0 against 2, 3, 3 raise nDCG and lower DCG."""
        bench = Bench(redis_server, DECIDED)
        bench.feed([list(_ordered())])
        page = Page(render_experiment_report(account(bench.reader, DECIDED)))
        assert "Stop it" in page.text
        assert "Metrics disagree. ndcg@3 and dcg@5 disagree: ndcg@3 is up (+" in page.text
        assert "dcg@5 is down (−" in page.text
        assert "Go by dcg@5." in page.text


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
    yield Response("last", START + 30 * DAY, "ranker", "control", items, None, "student-last")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Path:
    """Return the page that the command writes of two replayed weeks."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp("report")
    events = directory / "events.jsonl"
    traffic = ["--responses", "12000", "--students", "4000", "--days", "14", "--effect=treatment=0.6"]
    assert ab_monitor("simulate", *traffic, "--out", events).returncode == 0
    config = write_config(directory / "config.toml", CONFIG, [("store", redis_server.url)])
    assert ab_monitor("replay", "--config", config, events).returncode == 0
    written = directory / "report.html"
    done = ab_monitor("report", "ranker-v2", "--config", config, "--html", written)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return written


class TestTheCommand:
    """`ab-monitor report`."""

    def test_says_what_verdict_says(self, page: Path) -> None:
        """The same sentence and reasons."""
        said = ab_monitor("verdict", "ranker-v2", "--config", page.parent / "config.toml").stdout
        shown = Page(page.read_text(encoding="utf-8")).text
        assert "treatment: " in said
        for line in said.splitlines():
            if line.startswith(("treatment: ", "  because ", "  note ")):
                assert line.strip().removeprefix("because ").removeprefix("note    ") in shown

    def test_the_worker_takes_snapshots(self, page: Path, redis_server: RedisServer) -> None:
        """Also that of a replay, now and then; what is told of its last hours was noted."""
        (history,) = redis_server.client().scan_iter("abm:{0}:0:p:*")
        assert redis_server.client().hlen(history) >= 1
        assert "There is no history" not in page.read_text(encoding="utf-8")

    def test_goes_to_stdout_as_well(self, page: Path) -> None:
        """With `--html -`."""
        done = ab_monitor("report", "ranker-v2", "--config", page.parent / "config.toml", "--html", "-")
        assert done.stdout == page.read_text(encoding="utf-8")

    def test_refuses_in_a_line(self, page: Path, tmp_path: Path) -> None:
        """An unknown experiment, and a place that nothing can be written to."""
        config = page.parent / "config.toml"
        done = ab_monitor("report", "ranker", "--config", config, "--html", tmp_path / "x")
        assert (done.returncode, done.stderr) == (2, "ab-monitor: report E: got 'ranker', expected one of ranker-v2\n")
        done = ab_monitor("report", "ranker-v2", "--config", config, "--html", tmp_path)
        assert (done.returncode, done.stderr) == (2, f"ab-monitor: --html: {tmp_path}: Is a directory\n")


class TestInABrowser:
    """The page under its own policy."""

    def test_is_whole(self, page: Path) -> None:
        """Styles apply and plots are drawn: what the browser made of it has them all."""
        assert dom(f"file://{page}").count('<svg class="plot"') == 6

    @pytest.mark.parametrize("width", [1000, 400])
    def test_renders_light_and_dark(self, page: Path, tmp_path: Path, width: int) -> None:
        """A screenshot comes out, and is more than an empty page; the reader's scheme is followed."""
        pictures = []
        for name, extra in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
            picture = tmp_path / f"{name}.png"
            screenshot(f"file://{page}", picture, width, 4000, *extra)
            pictures.append(picture.read_bytes())
            assert len(pictures[-1]) > 60_000
        assert pictures[0] != pictures[1]
