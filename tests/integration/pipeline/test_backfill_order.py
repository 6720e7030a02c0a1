"""Any interleaving of a backfill and live batches gives the aggregates of all events, without Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import ExperimentSettings
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.events import Feedback, Response
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.commit_pipeline import ShardBatch, ShardedWriter
from monitor.state import PENDING_FEEDBACK, Position, PositionUpdate, ShardedStore
from tests.servers.redis import RedisServer
from tests.support.dump import Dump, dump
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import EXCLUDING, EXPERIMENT, arrivals, changed, normalize_events, streams

OTHER = replace(EXPERIMENT, name="other")
REDEFINED = replace(EXPERIMENT, gain="linear", novelty=True, exclude=EXCLUDING.exclude)
Events = Sequence[Response | Feedback]


class _Applier:
    """A worker, or a backfill, that applies batches at its own positions."""

    def __init__(
        self,
        bench: StoreBench,
        experiments: Mapping[int, ExperimentSettings],
        *,
        superseded_numbers: frozenset[int] = frozenset(),
        backfilled_number: int | None = None,
    ) -> None:
        self.shards: ShardedStore = bench.store.reconnect(backfill=backfilled_number)
        id_hasher = IdHasher(bench.metadata.hash_key)
        every = [Experiment(number, experiment) for number, experiment in experiments.items()]
        self._writer = ShardedWriter(
            every,
            id_hasher,
            self.shards,
            max_cached_rows=4,
            superseded_numbers=superseded_numbers,
            backfilled_number=backfilled_number,
        )
        self._normalizer = EventNormalizer(
            [each for each in every if backfilled_number in (None, each.number)], id_hasher
        )
        self._late_before_ms = dict.fromkeys([PENDING_FEEDBACK, *map(str, experiments)], 0)
        position = self._writer.reload_state().positions.get("t:0")
        self._offset = None if position is None else position.next_offset

    def apply(self, events: Events) -> None:
        """Apply a batch, again after each conflict."""
        next_offset = (self._offset or 0) + 1
        decoded = DecodedBatch(normalize_events(self._normalizer, events))
        batch = ShardBatch(0, 0, decoded, [PositionUpdate("t:0", self._offset, Position(next_offset))])
        while (status := self._writer.submit(batch, self._late_before_ms).result()) != "applied":
            assert status == "rows_changed"
            self._writer.reload_state()
        self._offset = next_offset

    def close(self) -> None:
        """End the threads and connections."""
        self._writer.close()
        self.shards.close()


def _dump(bench: StoreBench, numbers: Collection[int]) -> Dump:
    return {
        key: value
        for key, value in dump(bench.store).items()
        if any(f"{key.decode()}:".partition(":")[2].startswith(f"{number}:") for number in numbers)
    }


def _apply_all(bench: StoreBench, batches: Sequence[Events], experiments: Mapping[int, ExperimentSettings]) -> None:
    worker = _Applier(bench, experiments)
    for batch in batches:
        worker.apply(batch)
    worker.close()


@pytest.mark.parametrize("is_redefinition", [False, True])
def test_any_interleaving_of_a_backfill_and_live_batches_gives_the_same_integers(
    redis_server: RedisServer, *, is_redefinition: bool
) -> None:
    """Of a new experiment, and of an experiment with other definitions, under a new number."""
    number, old_experiments = (3, {1: EXPERIMENT, 2: OTHER}) if is_redefinition else (2, {1: EXPERIMENT})
    experiments = {3: REDEFINED, 2: OTHER} if is_redefinition else {1: EXPERIMENT, 2: OTHER}
    superseded_numbers = frozenset({1}) if is_redefinition else frozenset()

    @settings(max_examples=40, suppress_health_check=SLOW_HEALTH_CHECKS)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        events: list[Response | Feedback] = [
            changed(event, experiment="other")
            if isinstance(event, Response) and crc32(event.response_id.encode()) % 2
            else event
            for event in data.draw(streams())
        ]
        batches = data.draw(arrivals(events))
        boundary = data.draw(st.integers(0, len(batches)))
        past, live = batches[:boundary], batches[boundary:]
        bench = StoreBench(redis_server)
        _apply_all(bench, [events], experiments)
        expected = _dump(bench, experiments)
        bench = StoreBench(redis_server)
        _apply_all(bench, past, old_experiments)
        old_aggregates = _dump(bench, [1])
        worker = _Applier(bench, experiments, superseded_numbers=superseded_numbers)
        backfill = _Applier(bench, experiments, superseded_numbers=superseded_numbers, backfilled_number=number)
        backfill_batches = [
            [event for event in batch if isinstance(event, event_type)]
            for event_type in (Response, Feedback)
            for batch in past
        ]
        turns = data.draw(st.permutations([worker] * len(live) + [backfill] * len(backfill_batches)))
        queues = {worker: list(live), backfill: backfill_batches}
        for applier in turns:
            applier.apply(queues[applier].pop(0))
        worker.close()
        backfill.close()
        assert _dump(bench, experiments) == expected
        if is_redefinition:
            assert _dump(bench, [1]) == old_aggregates

    check()
