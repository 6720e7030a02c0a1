"""Drift of the recommended items from day to day, in a real store: alarms, references and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from monitor.analysis.drift import measure_drift
from monitor.analysis.summary import VariantSummary
from monitor.config import DriftSettings, ExperimentSettings
from monitor.events import Response
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS, item_cell_counts
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, START

DRIFT_EXPERIMENT = replace(EXPERIMENT, items=None, categories=(), decay=(), drift=DriftSettings(3, 3, alpha=0.2))
"""Three days of reference; each variant at α = 0.1."""


def _day_of_responses(
    chance: np.random.Generator, day: int, variant: str, lists: Sequence[tuple[str, ...]], students: int = 200
) -> list[Response]:
    """Return the responses of a day's students; each student gets the same list in every response."""
    responses = []
    for student in range(students):
        items = lists[int(chance.integers(len(lists)))]
        user_id = f"{variant}-{day}-{student}"
        for number in range(int(chance.geometric(0.4))):
            timestamp_ms = START + day * DAY_MS + int(chance.integers(DAY_MS))
            responses.append(Response(f"{user_id}-{number}", timestamp_ms, "ranker", variant, items, user_id=user_id))
    return responses


def _make_lists(first: int, count: int) -> list[tuple[str, ...]]:
    """Return lists of three to five items each."""
    return [tuple(f"video-{number}-{item}" for item in range(3 + number % 3)) for number in range(first, first + count)]


def _end_of_day_before(day: int) -> list[Response]:
    """Return a response without items of each variant on a day, so that the day before is over."""
    return [
        Response(f"end-{variant}", START + day * DAY_MS, "ranker", variant, (), user_id=f"end-{variant}")
        for variant in EXPERIMENT.variants
    ]


def _summarize_variants(bench: StoreBench) -> dict[str, VariantSummary]:
    return dict(bench.reader.read_summary().experiments["ranker"].variants)


def _apply(
    server: RedisServer, events: Sequence[Response], experiment: ExperimentSettings = DRIFT_EXPERIMENT
) -> StoreBench:
    bench = StoreBench(server, experiment)
    bench.apply([events])
    return bench


class TestAlarms:
    """Alarms of both distances."""

    def test_new_recommendations_raise_an_alarm_for_their_variant(self, redis_server: RedisServer) -> None:
        """On the fourth day the treatment has other videos for half of the responses; the control is unchanged."""
        chance, usual_lists = np.random.default_rng(5), _make_lists(0, 20)
        events = [
            event
            for day in range(3)
            for variant in DRIFT_EXPERIMENT.variants
            for event in _day_of_responses(chance, day, variant, usual_lists)
        ]
        events += _day_of_responses(chance, 3, "control", usual_lists) + _day_of_responses(
            chance, 3, "treatment", [*usual_lists[:10], *_make_lists(20, 10)]
        )
        alarms = {}
        for name, variant_summary in _summarize_variants(
            _apply(redis_server, [*events, *_end_of_day_before(4)])
        ).items():
            assert variant_summary.item_drift is not None
            drift = variant_summary.item_drift.drift
            assert drift.psi is not None
            assert drift.js is not None
            alarms[name] = drift.psi.exceeded, drift.js.exceeded
        assert alarms == {"control": (False, False), "treatment": (True, True)}

    def test_the_share_of_false_alarms_is_at_most_alpha(self, redis_server: RedisServer) -> None:
        """200 variants at α = 0.1; with items as independent observations most of them would raise an alarm."""
        chance, usual_lists = np.random.default_rng(6), _make_lists(0, 20)
        alarms, alarms_without_clusters = {"psi": 0, "js": 0}, 0
        for _ in range(100):
            events = [
                event
                for day in range(4)
                for variant in DRIFT_EXPERIMENT.variants
                for event in _day_of_responses(chance, day, variant, usual_lists, 30)
            ]
            for variant_summary in _summarize_variants(
                _apply(redis_server, [*events, *_end_of_day_before(4)])
            ).values():
                day_drift = variant_summary.item_drift
                assert day_drift is not None
                assert day_drift.drift.psi is not None
                assert day_drift.drift.js is not None
                alarms["psi"] += day_drift.drift.psi.exceeded
                alarms["js"] += day_drift.drift.js.exceeded
                distance = measure_drift(day_drift.counts, day_drift.reference, alpha=0.1, draws=99).js
                assert distance is not None
                alarms_without_clusters += distance.exceeded
        # 20 expected; 200 coins with 0.1 stay at 34 or below in 99.9 % of all cases.
        assert all(count <= 34 for count in alarms.values()), alarms
        assert alarms_without_clusters > 100


class TestReference:
    """The reference that a day is compared with."""

    def test_a_day_emptied_by_a_revision_is_not_the_first_reference_day(self, redis_server: RedisServer) -> None:
        """The only response of the day turns out to be of the other variant; the index of days keeps the day."""
        experiment = replace(DRIFT_EXPERIMENT, drift=DriftSettings(1, 1))
        first_version = Response("r", START + 3_600_000, "ranker", "treatment", ("a", "b"), user_id="s")
        revision = Response("r", START, "ranker", "control", ("a",), user_id="s")
        days = [
            Response(f"r-{day}", START + day * DAY_MS, "ranker", "treatment", (f"video-{day}",), user_id="t")
            for day in range(1, 5)
        ]
        bench = StoreBench(redis_server, experiment)
        bench.apply([[first_version, *days], [revision]])
        assert bench.first_shard.client.zscore(
            bench.first_shard.keys.traffic_day_index(bench.experiment_number, 1), str(START // DAY_MS)
        )
        day_drift = _summarize_variants(bench)["treatment"].item_drift
        assert day_drift is not None
        assert list(day_drift.reference.values()) == item_cell_counts(bench.metadata.hash_key, [days[0]])
        assert list(day_drift.counts.values()) == item_cell_counts(bench.metadata.hash_key, [days[2]])

    def test_configured_item_counts_can_be_the_reference(self, redis_server: RedisServer) -> None:
        """Items of the reference are in the same cells; no reference days are needed."""
        reference_counts = {"video-0-0": 30, "video-0-1": 20, "video-1-0": 50}
        experiment = replace(DRIFT_EXPERIMENT, drift=DriftSettings(3, reference_counts))
        bench = _apply(
            redis_server,
            [*_day_of_responses(np.random.default_rng(1), 0, "control", _make_lists(0, 1)), *_end_of_day_before(1)],
            experiment,
        )
        day_drift = _summarize_variants(bench)["control"].item_drift
        assert day_drift is not None
        reference_responses = [
            Response("x", 0, "ranker", "control", (item,))
            for item, count in reference_counts.items()
            for _ in range(count)
        ]
        assert list(day_drift.reference.values()) == item_cell_counts(bench.metadata.hash_key, reference_responses)
        assert sum(day_drift.reference.values()) == 100
        assert day_drift.cluster_size >= 3

    def test_with_configured_references_a_day_without_responses_has_no_drift(self, redis_server: RedisServer) -> None:
        """The control had no responses yesterday; the treatment had."""
        experiment = replace(
            EXPERIMENT,
            items=None,
            drift=DriftSettings({"fractions": 30, "other": 10}, {"video-0-0": 3, "video-0-1": 2}),
        )
        days = {"control": (0, 1), "treatment": (0, 1, 2)}
        events = [
            event
            for variant, active_days in days.items()
            for day in active_days
            for event in _day_of_responses(np.random.default_rng(day), day, variant, _make_lists(0, 2))
        ]
        summaries = _summarize_variants(_apply(redis_server, [*events, *_end_of_day_before(3)], experiment))
        assert {name: summary.item_drift is not None for name, summary in summaries.items()} == {
            "control": False,
            "treatment": True,
        }

    def test_days_without_items_have_no_drift(self, redis_server: RedisServer) -> None:
        """A variant with empty responses only has no distribution of items."""
        empty_responses = [
            Response(f"r-{day}", START + day * DAY_MS, "ranker", "control", (), user_id="s") for day in range(6)
        ]
        assert _summarize_variants(_apply(redis_server, empty_responses))["control"].item_drift is None


def test_a_record_of_a_million_items_needs_no_more_memory_than_one_of_5000(redis_server: RedisServer) -> None:
    """After 200 000 responses with different items, and after 1 000."""
    memory_bytes = []
    for response_count in (1_000, 200_000):
        bench = StoreBench(redis_server, DRIFT_EXPERIMENT)
        bench.apply(
            [
                [
                    Response(f"r-{n}", START + n, "ranker", "control", tuple(f"video-{n}-{item}" for item in range(5)))
                    for n in range(first, first + 1_000)
                ]
                for first in range(0, response_count, 1_000)
            ]
        )
        key = bench.first_shard.keys.traffic_day(bench.experiment_number, 0, START // DAY_MS)
        record = np.frombuffer(bytes(bench.first_shard.client.get(key)), dtype=">i8")
        assert (record[0], record[1], record[2:].sum()) == (response_count, 25 * response_count, 5 * response_count)
        memory_bytes.append(bench.first_shard.client.memory_usage(key))
    assert memory_bytes[0] == memory_bytes[1] < 1_000
