"""What is recommended by day, through a real store: when it alarms, what it is compared with, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from monitor.analysis.drift import measure_drift
from monitor.analysis.summary import VariantSummary
from monitor.config import DriftSettings, ExperimentSettings
from monitor.events import Response
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY, cells
from tests.support.streams import EXPERIMENT, START

PLAIN = replace(EXPERIMENT, items=None, categories=(), decay=(), drift=DriftSettings(3, 3, alpha=0.2))
"""Three days of reference; each variant at α = 0.1."""


def _day(
    chance: np.random.Generator, day: int, variant: str, lists: Sequence[tuple[str, ...]], students: int = 200
) -> list[Response]:
    """Return the answers of a day's students, who get the same list however often they ask: most once, some often."""
    found = []
    for student in range(students):
        answer = lists[int(chance.integers(len(lists)))]
        name = f"{variant}-{day}-{student}"
        for number in range(int(chance.geometric(0.4))):
            at_ms = START + day * DAY + int(chance.integers(DAY))
            found.append(Response(f"{name}-{number}", at_ms, "ranker", variant, answer, user_id=name))
    return found


def _lists(first: int, count: int) -> list[tuple[str, ...]]:
    """Return lists of three to five items each."""
    return [tuple(f"video-{number}-{item}" for item in range(3 + number % 3)) for number in range(first, first + count)]


def _end(day: int) -> list[Response]:
    """Return an answer of each variant on a later day, after which the one before is over."""
    return [
        Response(f"end-{variant}", START + day * DAY, "ranker", variant, (), user_id=f"end-{variant}")
        for variant in EXPERIMENT.variants
    ]


def _summary(bench: Bench) -> dict[str, VariantSummary]:
    return dict(bench.reader.summary().experiments["ranker"].variants)


def _fed(server: RedisServer, events: Sequence[Response], experiment: ExperimentSettings = PLAIN) -> Bench:
    bench = Bench(server, experiment)
    bench.feed([events])
    return bench


class TestAlarm:
    """Both distances against what chance explains."""

    def test_new_recommendations_are_seen_where_they_are(self, redis_server: RedisServer) -> None:
        """The treatment finds other videos for half of the questions on the fourth day; the control does not."""
        chance, known = np.random.default_rng(5), _lists(0, 20)
        events = [
            event for day in range(3) for variant in PLAIN.variants for event in _day(chance, day, variant, known)
        ]
        events += _day(chance, 3, "control", known) + _day(chance, 3, "treatment", [*known[:10], *_lists(20, 10)])
        found = {name: each.recommended for name, each in _summary(_fed(redis_server, [*events, *_end(4)])).items()}
        alarms = {}
        for name, each in found.items():
            assert each is not None
            assert each.drift.psi is not None
            assert each.drift.js is not None
            alarms[name] = each.drift.psi.exceeded, each.drift.js.exceeded
        assert alarms == {"control": (False, False), "treatment": (True, True)}

    def test_without_a_change_alarms_are_as_rare_as_they_are_meant_to_be(self, redis_server: RedisServer) -> None:
        """200 variants at α = 0.1; items counted one by one, most of them would alarm."""
        chance, known = np.random.default_rng(6), _lists(0, 20)
        alarms, naive = {"psi": 0, "js": 0}, 0
        for _ in range(100):
            events = [
                event
                for day in range(4)
                for variant in PLAIN.variants
                for event in _day(chance, day, variant, known, 30)
            ]
            for each in _summary(_fed(redis_server, [*events, *_end(4)])).values():
                found = each.recommended
                assert found is not None
                assert found.drift.psi is not None
                assert found.drift.js is not None
                alarms["psi"] += found.drift.psi.exceeded
                alarms["js"] += found.drift.js.exceeded
                single = measure_drift(found.counts, found.reference, alpha=0.1, draws=99).js
                assert single is not None
                naive += single.exceeded
        # 20 expected; 200 coins with 0.1 stay at 34 or below in 99.9 % of all cases.
        assert all(count <= 34 for count in alarms.values()), alarms
        assert naive > 100


class TestReference:
    """What a day is compared with."""

    def test_a_first_day_that_a_revision_has_emptied_is_not_the_first(self, redis_server: RedisServer) -> None:
        """Its only answer turns out to be the other variant's, an hour earlier; the index names the day still."""
        experiment = replace(PLAIN, drift=DriftSettings(1, 1))
        wrong = Response("r", START + 3_600_000, "ranker", "treatment", ("a", "b"), user_id="s")
        right = Response("r", START, "ranker", "control", ("a",), user_id="s")
        days = [
            Response(f"r-{day}", START + day * DAY, "ranker", "treatment", (f"video-{day}",), user_id="t")
            for day in range(1, 5)
        ]
        bench = Bench(redis_server, experiment)
        bench.feed([[wrong, *days], [right]])
        assert bench.store.client.zscore(bench.store.keys.days(bench.number, 1), str(START // DAY))
        found = _summary(bench)["treatment"].recommended
        assert found is not None
        assert list(found.reference.values()) == cells(bench.opened.hash_key, [days[0]])
        assert list(found.counts.values()) == cells(bench.opened.hash_key, [days[2]])

    def test_a_file_counts_items(self, redis_server: RedisServer) -> None:
        """Its items fall into the same cells; it needs no first days, and list lengths are those of the day."""
        given = {"video-0-0": 30, "video-0-1": 20, "video-1-0": 50}
        experiment = replace(PLAIN, drift=DriftSettings(3, given))
        bench = _fed(redis_server, [*_day(np.random.default_rng(1), 0, "control", _lists(0, 1)), *_end(1)], experiment)
        found = _summary(bench)["control"].recommended
        assert found is not None
        as_shown = [
            Response("x", 0, "ranker", "control", (item,)) for item, shown in given.items() for _ in range(shown)
        ]
        assert list(found.reference.values()) == cells(bench.opened.hash_key, as_shown)
        assert sum(found.reference.values()) == 100
        assert found.alike >= 3

    def test_with_files_for_both_a_day_without_responses_has_no_drift(self, redis_server: RedisServer) -> None:
        """A variant that was idle yesterday, while the other was not; only that day is read."""
        experiment = replace(
            EXPERIMENT,
            items=None,
            drift=DriftSettings({"fractions": 30, "other": 10}, {"video-0-0": 3, "video-0-1": 2}),
        )
        days = {"control": (0, 1), "treatment": (0, 1, 2)}
        events = [
            event
            for variant, active in days.items()
            for day in active
            for event in _day(np.random.default_rng(day), day, variant, _lists(0, 2))
        ]
        found = _summary(_fed(redis_server, [*events, *_end(3)], experiment))
        assert {name: each.recommended is not None for name, each in found.items()} == {
            "control": False,
            "treatment": True,
        }

    def test_days_without_any_item_are_compared_with_nothing(self, redis_server: RedisServer) -> None:
        """A variant that finds nothing has no distribution; its empty answers are told elsewhere."""
        empty = [Response(f"r-{day}", START + day * DAY, "ranker", "control", (), user_id="s") for day in range(6)]
        assert _summary(_fed(redis_server, empty))["control"].recommended is None


def test_a_million_different_items_take_no_more_than_a_few(redis_server: RedisServer) -> None:
    """A day's record has as many bytes after 200 000 answers with items of their own as after 1 000."""
    taken = []
    for answers in (1_000, 200_000):
        bench = Bench(redis_server, PLAIN)
        bench.feed(
            [
                [
                    Response(f"r-{n}", START + n, "ranker", "control", tuple(f"video-{n}-{item}" for item in range(5)))
                    for n in range(first, first + 1_000)
                ]
                for first in range(0, answers, 1_000)
            ]
        )
        key = bench.store.keys.day(bench.number, 0, START // DAY)
        stored = np.frombuffer(bytes(bench.store.client.get(key)), dtype=">i8")
        assert (stored[0], stored[1], stored[2:].sum()) == (answers, 25 * answers, 5 * answers)
        taken.append(bench.store.client.memory_usage(key))
    assert taken[0] == taken[1] < 1_000
