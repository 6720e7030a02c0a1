"""The audit, on real servers: silent about what is right, and by name about what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import DependencyUnavailable, StoreOwned
from monitor.events import Feedback, Response
from monitor.metrics.traffic import FIRST_CATEGORY, FIRST_CELL
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.watermark import Progress
from monitor.state import Advance, Commit, Position
from monitor.state.record_reader import encode_chunk
from monitor.state.recount import audit
from tests.integration.pipeline.test_exactness import _SLOW, Bench
from tests.integration.state.test_redis_store import _rating, _response
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.streams import EXPERIMENT, HOUR, RICH, START, arrivals, streams

Events = Sequence[Response | Feedback]


@settings(max_examples=25, suppress_health_check=_SLOW)
@given(data=st.data())
def test_what_a_worker_writes_agrees_with_its_rows(data: st.DataObject, redis_server: RedisServer) -> None:
    """Whatever the stream, the order and the batches."""
    events = data.draw(streams())
    bench = Bench(redis_server, data.draw(st.sampled_from([EXPERIMENT, RICH])), data.draw(st.sampled_from([1, 3])))
    bench.feed(data.draw(arrivals(events)), workers=2, turns=data.draw(st.lists(st.integers(0, 1), min_size=1)))
    findings = audit(bench.shards, bench.settings)
    assert findings.differences == []
    assert findings.unchecked == []
    bench.store.close()


@pytest.fixture
def bench(store_server: RedisServer) -> Bench:
    """Return a store with a few events."""
    made = Bench(store_server)
    anonymous = Response("r-8", START + HOUR, "ranker", "treatment", _response(8, START).items)
    made.feed(
        [
            [
                _response(1, START),
                _response(2, START + 3 * HOUR),
                anonymous,
                _rating(1, START + 5),
                _rating(8, START + HOUR),
            ]
        ]
    )
    return made


def _increase(name: Callable[[Bench], bytes], at: int) -> Callable[[Bench], None]:
    def corrupt(bench: Bench) -> None:
        bench.store.client.execute_command("BITFIELD", name(bench), "INCRBY", "i64", f"#{at}", 1)

    return corrupt


def _delete(pattern: bytes) -> Callable[[Bench], None]:
    def corrupt(bench: Bench) -> None:
        name = next(bench.store.client.scan_iter(bench.store.keys.prefix + pattern))
        assert bench.store.client.delete(name)

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "said"),
    [
        (_increase(lambda b: b.store.keys.responses(b.number, 0), 0), "responses"),
        (_increase(lambda b: b.store.keys.units(b.number, 0), 3), "students, integer 3"),
        (_increase(lambda b: b.store.keys.traffic(b.number, 0), 1), "empty ones"),
        (
            _increase(lambda b: b.store.keys.traffic_hour(b.number, 0, START // HOUR), 4),
            "traffic from 2026-01-01T00:00:00.000Z: up to 100 ms",
        ),
        (
            _increase(lambda b: b.store.keys.day(b.number, 0, START // 86_400_000), FIRST_CATEGORY + 1),
            "days from 2026-01-01T00:00:00.000Z: category geometry",
        ),
        (
            _increase(lambda b: b.store.keys.day(b.number, 0, START // 86_400_000), FIRST_CELL + 7),
            "days from 2026-01-01T00:00:00.000Z: items in cell 7",
        ),
        (_delete(b"f:*"), "in the index"),
        (_delete(b"e:*"), "in the index"),
        (_delete(b"J:*:0"), "slice 6818 is in the index"),
        (_delete(b"D:*"), "is in the index"),
        (_increase(lambda b: b.store.keys.cohort(b.number, 0, START // 86_400_000), 1), "cohort 2026-01-01"),
        (
            lambda b: b.store.client.append(
                b.store.keys.chunk(b.number, 0, "1h", START // HOUR), encode_chunk(np.array([0, 1]))
            ),
            "1h bucket from 2026-01-01T00:00",
        ),
        (lambda b: b.store.client.hincrby(b.store.keys.kinds(b.number, 0), "rating", 1), "reactions of kind rating"),
        (_delete(b"rr-1"), "rated responses"),
        (_delete(b"s*"), "students, integer 0"),
        (_delete(b"b:*:24h:*"), "24h bucket"),
        (_delete(b"i:*:0:24h"), "is in the index"),
        (_delete(b"t"), "newest response"),
    ],
)
def test_every_kind_of_damage_is_named(bench: Bench, corrupt: Callable[[Bench], None], said: str) -> None:
    """Where it is, what is stored and what the rows say."""
    assert audit(bench.shards, bench.settings).differences == []
    corrupt(bench)
    assert said in " ".join(each.what for each in audit(bench.shards, bench.settings).differences)


@pytest.mark.parametrize(
    ("key", "content", "said"),
    [
        (b"rr-1", b"", "the row of a response is damaged"),
        (b"rr-1", b"\0\0\0\1garbage", "the row of a response is damaged"),
        (b"a:1:0", b"zzz", r"abm:\{0\}:0:a:1:0 is damaged \(3 bytes"),
        (b"d", None, "abm:.*:d is missing"),
    ],
)
def test_what_cannot_be_read_is_named_in_a_line(bench: Bench, key: bytes, content: bytes | None, said: str) -> None:
    """And nobody goes on as if it were nothing."""
    bench.store.client.delete(bench.store.keys.prefix + key)
    if content is not None:
        bench.store.client.set(bench.store.keys.prefix + key, content)
    with pytest.raises(StoreOwned, match=said):
        audit(bench.shards, bench.settings)


def test_what_was_swept_is_no_damage(bench: Bench) -> None:
    """Only what the rows that are held can tell is compared, and the rest is said."""
    later = START + EXPERIMENT.horizon_ms + 2 * HOUR
    _, store = bench.worker()
    progress = Progress({"1": EXPERIMENT.horizon_ms})
    progress.load(store.state())
    progress.see_ends({"t:0": 5})
    progress.advanced([Advance("t:0", 5, Position(5, later))])
    Sweeper(store, [bench.experiment]).sweep(progress)
    findings = audit(bench.shards, bench.settings)
    assert findings.differences == []
    assert any("feedback kinds" in line for line in findings.unchecked)
    assert any("1 responses name none" in line for line in findings.unchecked)


def test_what_a_shorter_retention_has_dropped_is_no_damage(store_server: RedisServer) -> None:
    """Rows outlive it for a while: the sweep goes by and by. It may be raised afterwards."""
    bench = Bench(store_server)
    bench.feed([[_response(1, START), _rating(1, START + 5), _response(3, START + 2 * EXPERIMENT.retention_ms)]])
    _, store = bench.worker()
    before = dump(bench.store)
    Sweeper(store, [bench.experiment])._drop_past()
    assert dump(bench.store) != before
    longer = replace(EXPERIMENT, retention_ms=10 * EXPERIMENT.retention_ms)
    assert audit(bench.shards, replace(bench.settings, experiments=(longer,))).differences == []


def test_a_store_that_is_written_meanwhile_is_not_judged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-read rows would look like damage."""
    _, store = bench.worker()
    read = bench.store.rows

    def rows(keys: Sequence[bytes]) -> list[bytes | None]:
        store.state()
        assert store.commit(Commit()) == "applied"
        return read(keys)

    monkeypatch.setattr(bench.store, "rows", rows)
    with pytest.raises(DependencyUnavailable, match="is being written"):
        audit(bench.shards, bench.settings)
