"""Invariant 1 on real servers: the aggregates are a function of the set of events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.analysis.summary import VariantSummary
from monitor.config import ExperimentSettings, Settings, StoreSettings
from monitor.engine import EventBatch, EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.events import Feedback, Response
from monitor.metrics.record_layout import Layout, join_limbs
from monitor.metrics.traffic import FIRST_CATEGORY, FIRST_CELL
from monitor.pipeline.batch_applier import Engine
from monitor.pipeline.batch_decoding import Decoded
from monitor.pipeline.commit_pipeline import Batch, PendingCommit, ShardedWriter
from monitor.state import Advance, Commit, Position, Reader, RedisStore, Shards, open_store, sum_up
from monitor.state.keys import PENDING_CLASS
from monitor.state.store_records import Status
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.oracle import DAY, Judged, category, cells, decayed_mean, judge, latency_ms, students
from tests.support.streams import EXPERIMENT, HOUR, RICH, arrivals, settings_with, streams, taken

Events = Sequence[Response | Feedback]
_SLOW = [
    HealthCheck.too_slow,
    HealthCheck.function_scoped_fixture,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
]
_KEY = "a key for tests"


class Bench:
    """A store with any number of workers, each with a partition of its own."""

    def __init__(
        self,
        server: RedisServer | RedisCluster,
        experiment: ExperimentSettings = EXPERIMENT,
        shards: int = 1,
        *,
        eager: bool = False,
    ) -> None:
        """Empty the server; eager workers sum up the time buckets after every commit."""
        self.eager = eager
        self.settings: Settings = replace(
            settings_with(experiment), store=StoreSettings(url=server.url, user_hash_key=_KEY, shards=shards)
        )
        self.shards = Shards(self.settings.store, count=shards)
        self.store = self.shards.first
        self.store.client.flushall()
        self.opened = open_store(self.shards, self.settings)
        self.reader = Reader(self.shards, self.settings, self.opened.numbers, lambda: 0)
        self.number = self.opened.numbers[experiment.name]
        self.experiment = Experiment(self.number, self.settings.experiments[0])
        self.normalizer = EventNormalizer([self.experiment], IdHasher(self.opened.hash_key))
        self.late = {str(self.number): 0, PENDING_CLASS: 0}

    def taken(self, *events: Response | Feedback) -> EventBatch:
        """Return the events as a worker takes them in."""
        return taken(self.normalizer, events)

    def worker(self) -> tuple[Engine, RedisStore]:
        """Return another worker's engine and connection, to one shard."""
        store = RedisStore(self.settings.store)
        store.state()
        return Engine([self.experiment], IdHasher(self.opened.hash_key), store, cached=4), store

    def writer(self) -> ShardedWriter:
        """Return another worker's writer."""
        shards = self.shards.again()
        if self.eager:
            for shard in shards:
                _sum_up_always(shard)
        return ShardedWriter([self.experiment], IdHasher(self.opened.hash_key), shards, cached=4)

    def submit(
        self, writer: ShardedWriter, events: EventBatch | Sequence[Response | Feedback], *advances: Advance
    ) -> PendingCommit:
        """Have a writer commit events that take partitions of one shard where the advances say."""
        decoded = Decoded(events if isinstance(events, EventBatch) else self.taken(*events))
        batch = Batch(writer.shard_of(advances[0].partition), 0, decoded, list(advances))
        return writer.submit(batch, self.late)

    def feed(self, batches: Sequence[Events], *, workers: int = 1, turns: Sequence[int] = (0,)) -> None:
        """Apply the batches, each by the worker whose turn it is; a refused commit is applied again.

        With several shards, each worker has a partition on each of them, and a student's events are in partitions of
        one number.
        """
        crew = [self.writer() for _ in range(workers)]
        for writer in crew:
            assert writer.state()
        homes = homes_of([event for batch in batches for event in batch], len(self.shards))
        offsets: Counter[str] = Counter()
        for number, batch in enumerate(batches):
            turn = turns[number % len(turns)] % workers
            writer = crew[turn]
            for shard in range(len(self.shards)):
                events = [event for event in batch if homes[event.response_id] == shard]
                name = f"t:{turn}" if len(self.shards) == 1 else f"t{turn}:{shard}"
                step = Advance(name, offsets[name] or None, Position(offsets[name] + len(events)))
                while events and (status := self.submit(writer, events, step).status.result()) != "applied":
                    assert status == "changed"
                    writer.state()
                offsets[name] += len(events)
        for writer in crew:
            writer.close()


def homes_of(events: Events, shards: int) -> Mapping[str, int]:
    """Return the shard of each response id, by the student whom the response was shown to."""
    students = {event.response_id: event.user_id for event in events if isinstance(event, Response)}
    return {
        event.response_id: crc32((students.get(event.response_id) or event.response_id).encode()) % shards
        for event in events
    }


def _sum_up_always(store: RedisStore) -> None:
    original = store.commit

    def eagerly(commit: Commit) -> Status:
        commit.chunk_limits = [0] * len(commit.chunk_limits)
        status = original(commit)
        sum_up(store)
        return status

    store.commit = eagerly  # type: ignore[method-assign]


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Return each kind of server."""
    found: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return found


@settings(max_examples=40, suppress_health_check=_SLOW)
@given(data=st.data())
def test_any_order_duplication_batching_and_split_give_the_same_integers(
    data: st.DataObject, server: RedisServer
) -> None:
    """Workers fed a shuffled, partly doubled stream leave what one worker leaves that got it in order on one shard."""
    events = data.draw(streams())
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH]))
    bench = Bench(server, experiment)
    bench.feed([events])
    expected = dump(bench.store)
    shards, eager = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    again = Bench(server, experiment, shards, eager=eager)
    again.feed(
        data.draw(arrivals(events)),
        workers=data.draw(st.integers(1, 3)),
        turns=data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=7)),
    )
    assert dump(again.shards) == expected


@settings(max_examples=40, suppress_health_check=_SLOW)
@given(events=streams(), shards=st.sampled_from([1, 3]))
def test_the_summary_is_what_a_straightforward_recomputation_says(
    events: Events, shards: int, server: RedisServer
) -> None:
    """Counts, sums, means, variances, decayed means and student sums agree with the oracle."""
    bench = Bench(server, shards=shards)
    bench.feed([events])
    judged = judge(EXPERIMENT, events)
    summary = bench.reader.summary()
    for name, found in summary.experiments["ranker"].variants.items():
        own = [each for each in judged if each.response.variant == name]
        rated = [each for each in own if each.rated]
        assert (found.responses, found.rated_responses) == (len(own), len(rated))
        assert found.feedback == _kinds(own)
        for metric in EXPERIMENT.metrics:
            values = [each.metrics[metric.name] for each in rated]
            defined = [value for value in values if value is not None]
            measured = found.metrics[metric.name]
            assert (measured.count, measured.undefined) == (len(defined), len(values) - len(defined))
            assert measured.sum == pytest.approx(math.fsum(defined), abs=1e-8)
            if defined:
                assert measured.mean == pytest.approx(np.mean(defined), abs=1e-8)
                assert measured.mean_over_all == pytest.approx(math.fsum(defined) / len(own), abs=1e-8)
            if len(defined) > 1:
                assert measured.variance == pytest.approx(np.var(defined, ddof=1), abs=1e-7)
            for decay in EXPERIMENT.decay[:2]:
                assert decay.half_life_ms is not None
                _check_decayed(
                    [(each.response.timestamp_ms, each.metrics[metric.name]) for each in rated],
                    summary.as_of_ms,
                    decay.half_life_ms,
                    measured.decayed[decay.name].mean,
                    measured.decayed[decay.name].effective_count,
                )
        others = {each.response.user_id for each in judged if each.response.variant != name} - {None}
        _check_traffic(bench, name, found, [each.response for each in own], others, summary.as_of_ms)
    _check_units(bench, judged)


def _check_traffic(
    bench: Bench,
    variant: str,
    summary: VariantSummary,
    own: Sequence[Response],
    others: set[str | None],
    as_of_ms: int,
) -> None:
    """Compare counts, latencies, items and categories with those of the oracle's responses.

    Students who were shown another variant as well are among the `others`.
    """
    found = summary.traffic
    assert found is not None
    for flow, responses in (
        (found.everything, own),
        (found.recent, [each for each in own if each.timestamp_ms >= ((as_of_ms + 1) // HOUR - 1) * HOUR]),
    ):
        latencies = [latency_ms(each) for each in responses if each.latency_ms is not None]
        assert (flow.responses, flow.empty) == (len(responses), sum(not each.items for each in responses))
        assert (flow.latency_ms, sum(flow.latencies)) == (sum(latencies), len(latencies))
        for bound_s, count in flow.cumulative():
            assert count == sum(latency <= bound_s * 1000 for latency in latencies)
    index = sorted(EXPERIMENT.variants).index(variant)
    for day in {each.timestamp_ms // DAY for each in own}:
        record = np.zeros(FIRST_CATEGORY + len(EXPERIMENT.categories) + 2, dtype=np.int64)
        for shard in bench.shards:
            stored = bench.store.client.get(shard.keys.day(bench.number, index, day)) or b""
            record[: len(stored) // 8] += np.frombuffer(bytes(stored), dtype=">i8")
        that_day = [each for each in own if each.timestamp_ms // DAY == day]
        places = [category(EXPERIMENT, each) for each in that_day]
        assert record[0] == len(that_day)
        assert record[1] == sum(len(each.items) ** 2 for each in that_day)
        assert record[FIRST_CELL:FIRST_CATEGORY].tolist() == cells(bench.opened.hash_key, that_day)
        assert record[FIRST_CATEGORY:].tolist() == [places.count(place) for place in (0, 1, 2, -1)]
    each_students = Counter(each.user_id or each.response_id for each in own if each.user_id not in others)
    total = sum(each_students.values())
    alike = sum(count**2 for count in each_students.values()) / total if total else 1.0
    _check_day(bench, summary, own, alike, as_of_ms // DAY - 1)


def _check_day(bench: Bench, found: VariantSummary, own: Sequence[Response], alike: float, day: int) -> None:
    """Compare what is said of the last whole day against the first one with the oracle's responses."""
    names = [*sorted(EXPERIMENT.categories), "other", "none"]
    first = min((each.timestamp_ms // DAY for each in own), default=day)
    of_day, of_first = ([each for each in own if each.timestamp_ms // DAY == at] for at in (day, first))
    if first >= day or not of_day:
        assert (found.categories, found.recommended) == (None, None)
        return
    assert found.categories is not None
    for responses, counts in ((of_day, found.categories.counts), (of_first, found.categories.reference)):
        places = [category(EXPERIMENT, each) for each in responses]
        expected = [places.count(place) for place in (0, 1, 2, -1)]
        assert [counts.get(name, 0) for name in names] == expected
    _check_divisor(found.categories.alike, alike)
    shown, before = (cells(bench.opened.hash_key, responses) for responses in (of_day, of_first))
    if not any(shown) or not any(before):
        assert found.recommended is None
        return
    assert found.recommended is not None
    assert (list(found.recommended.counts.values()), list(found.recommended.reference.values())) == (shown, before)
    lengths = [len(each.items) for each in (*of_day, *of_first)]
    _check_divisor(found.recommended.alike, alike * sum(length**2 for length in lengths) / sum(lengths))


def _check_divisor(found: float, exact: float) -> None:
    """Compare a divisor, which is rounded up, in four steps to a doubling."""
    steps = 4 * math.log2(found)
    assert steps == pytest.approx(round(steps), abs=1e-9)
    assert exact * (1 - 1e-9) <= found < exact * 2**0.25 * (1 + 1e-9)


def _kinds(judged: Sequence[Judged]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for each in judged:
        for kind, count in each.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    return dict(sorted(kinds.items()))


def _check_decayed(
    values: Sequence[tuple[int, float | None]],
    as_of_ms: int,
    half_life_ms: int,
    mean: float | None,
    count: float | None,
) -> None:
    expected = decayed_mean([(at_ms, value) for at_ms, value in values if value is not None], as_of_ms, half_life_ms)
    if expected is None:
        assert mean is None
        return
    assert mean == pytest.approx(expected[0], rel=1e-4, abs=1e-8)
    assert count == pytest.approx(expected[1], rel=1e-4)


def _check_units(bench: Bench, judged: Sequence[Judged]) -> None:
    """Compare Q = ΣS², R = ΣS·n, P = Σn² and the counts of units with the oracle's students."""
    sums = students(judged)
    layout = Layout.of(EXPERIMENT)
    for index, variant in enumerate(sorted(EXPERIMENT.variants)):
        record = np.zeros(layout.unit_width, dtype=np.int64)
        for shard in bench.shards:
            stored = bench.store.client.get(shard.keys.units(bench.number, index)) or b""
            record[: len(stored) // 8] += np.frombuffer(bytes(stored), dtype=">i8")
        anonymous = [each for each in judged if each.response.user_id is None and each.response.variant == variant]
        loyal = [arms[variant] for arms in sums.values() if set(arms) == {variant}]
        assert record[0] == sum(variant in arms for arms in sums.values())
        assert record[3] == len(loyal) + len(anonymous)
        assert record[4] == sum(each.responses for each in loyal) + len(anonymous)
        metric = EXPERIMENT.metrics[0].name
        pairs = [tuple(each.metrics[metric]) for each in loyal] + [
            (int(each.rated), each.metrics.get(metric) or 0.0) for each in anonymous
        ]
        squares = [join_limbs(record[at : at + 1], record[at + 1 : at + 2])[0] for at in (15, 17, 19, 21)]
        assert squares[0] / 2**30 == pytest.approx(math.fsum(s for _, s in pairs), abs=1e-8)
        assert squares[1] / 2.0 ** layout.squares[0] == pytest.approx(math.fsum(s * s for _, s in pairs), abs=1e-6)
        assert squares[2] / 2**30 == pytest.approx(math.fsum(n * s for n, s in pairs), abs=1e-6)
        assert squares[3] == sum(n * n for n, _ in pairs)
