"""The audit on real servers: no difference in correct stores, and a report of each damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import replace_file_experiments
from monitor.errors import CorruptStore, DependencyUnavailable
from monitor.events import Feedback, Response
from monitor.metrics import CohortField, DayField, HourField, ResponseField, UnitField
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import Commit, Position, PositionUpdate, update_declared_set
from monitor.state.aggregate_audit import audit_aggregates
from monitor.state.record_reader import encode_chunk
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench, make_rating, make_response
from tests.support.streams import (
    ANSWERS_ONLY,
    EXCLUDING,
    EXPERIMENT,
    HOUR,
    RICH,
    RICH_ANSWERS_ONLY,
    START,
    arrivals,
    streams,
)

Events = Sequence[Response | Feedback]


@settings(max_examples=25, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data())
def test_the_audit_finds_no_difference_in_what_workers_have_written(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """For any stream, order and division into batches."""
    events = data.draw(streams())
    in_another_zone = replace(RICH, day_zone="Australia/Lord_Howe")
    experiments = [EXPERIMENT, RICH, EXCLUDING, ANSWERS_ONLY, RICH_ANSWERS_ONLY, in_another_zone]
    experiment = data.draw(st.sampled_from(experiments))
    bench = StoreBench(redis_server, experiment, data.draw(st.sampled_from([1, 3])))
    bench.apply(
        data.draw(arrivals(events)), worker_count=2, worker_order=data.draw(st.lists(st.integers(0, 1), min_size=1))
    )
    findings = audit_aggregates(bench.store, bench.settings)
    assert findings.differences == []
    assert findings.unchecked == []
    bench.first_shard.close()


@pytest.fixture
def bench(store_server: RedisServer) -> StoreBench:
    """Return a store with a few events."""
    filled_bench = StoreBench(store_server)
    anonymous = Response("r-8", START + HOUR, "ranker", "treatment", make_response(8, START).items)
    filled_bench.apply(
        [
            [
                make_response(1, START),
                make_response(2, START + 3 * HOUR),
                anonymous,
                make_rating(1, START + 5),
                make_rating(8, START + HOUR),
            ]
        ]
    )
    return filled_bench


def _increase(name: Callable[[StoreBench], bytes], index: int) -> Callable[[StoreBench], None]:
    def corrupt(bench: StoreBench) -> None:
        bench.first_shard.client.execute_command("BITFIELD", name(bench), "INCRBY", "i64", f"#{index}", 1)

    return corrupt


def _delete(pattern: bytes) -> Callable[[StoreBench], None]:
    def corrupt(bench: StoreBench) -> None:
        name = next(bench.first_shard.client.scan_iter(bench.first_shard.keys.prefix + pattern))
        assert bench.first_shard.client.delete(name)

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "expected_name"),
    [
        (
            _increase(lambda b: b.first_shard.keys.all_time_sums(b.experiment_number, 0), ResponseField.RESPONSES),
            "responses",
        ),
        (
            _increase(lambda b: b.first_shard.keys.unit_sums(b.experiment_number, 0), UnitField.UNITS),
            "students, integer 3",
        ),
        (
            _increase(lambda b: b.first_shard.keys.traffic(b.experiment_number, 0), HourField.EMPTY_RESPONSES),
            "empty responses",
        ),
        (
            _increase(
                lambda b: b.first_shard.keys.traffic_hour(b.experiment_number, 0, START // HOUR),
                HourField.LATENCY_BUCKETS + 1,
            ),
            "traffic from 2026-01-01T00:00:00.000Z: up to 100 ms",
        ),
        (
            _increase(
                lambda b: b.first_shard.keys.traffic_day(b.experiment_number, 0, START // 86_400_000),
                DayField.CATEGORIES + 1,
            ),
            "days from 2026-01-01T00:00:00.000Z: category geometry",
        ),
        (
            _increase(
                lambda b: b.first_shard.keys.traffic_day(b.experiment_number, 0, START // 86_400_000),
                DayField.ITEM_CELLS + 7,
            ),
            "days from 2026-01-01T00:00:00.000Z: items in cell 7",
        ),
        (_delete(b"traffic_day_index:*"), "in the index"),
        (_delete(b"traffic_hour_index:*"), "in the index"),
        (_delete(b"item_index:*:0"), "slice 6818 is in the index"),
        (_delete(b"bad_answer_index:*"), "is in the index"),
        (
            _increase(
                lambda b: b.first_shard.keys.cohort_sums(b.experiment_number, 0, START // 86_400_000), CohortField.UNITS
            ),
            "cohort 2026-01-01",
        ),
        (
            lambda b: b.first_shard.client.append(
                b.first_shard.keys.bucket_chunk(b.experiment_number, 0, "1h", START // HOUR),
                encode_chunk(np.array([0, 1])),
            ),
            "1h bucket from 2026-01-01T00:00",
        ),
        (
            lambda b: b.first_shard.client.hincrby(
                b.first_shard.keys.feedback_kinds(b.experiment_number, 0), "rating", 1
            ),
            "reactions of kind rating",
        ),
        (_delete(b"rr-1"), "rated responses"),
        (_delete(b"s*"), "students, integer 0"),
        (_delete(b"bucket_chunk:*:24h:*"), "24h bucket"),
        (_delete(b"bucket_index:*:0:24h"), "is in the index"),
        (_delete(b"newest_times"), "newest response"),
    ],
)
def test_the_audit_reports_every_kind_of_damage(
    bench: StoreBench, corrupt: Callable[[StoreBench], None], expected_name: str
) -> None:
    """A difference names the integer, the stored value and the recomputed value."""
    assert audit_aggregates(bench.store, bench.settings).differences == []
    corrupt(bench)
    assert expected_name in " ".join(
        difference.integer_name for difference in audit_aggregates(bench.store, bench.settings).differences
    )


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        (b"rr-1", b"", "the row of a response is damaged"),
        (b"rr-1", b"\0\0\0\1garbage", "the row of a response is damaged"),
        (b"all_time_sums:1:0", b"zzz", r"abm:\{0\}:0:all_time_sums:1:0 is damaged \(3 bytes"),
        (b"experiments_set", None, "abm:.*:experiments_set is missing"),
    ],
)
def test_an_unreadable_row_or_record_raises_corrupt_store_with_the_reason(
    bench: StoreBench, key: bytes, content: bytes | None, message: str
) -> None:
    """The audit stops instead of treating the value as absent."""
    bench.first_shard.client.delete(bench.first_shard.keys.prefix + key)
    if content is not None:
        bench.first_shard.client.set(bench.first_shard.keys.prefix + key, content)
    with pytest.raises(CorruptStore, match=message):
        audit_aggregates(bench.store, bench.settings)


def test_an_experiment_that_is_being_filled_is_not_compared(bench: StoreBench) -> None:
    """Its rows move from the earlier number to the new one meanwhile."""
    changed = replace(bench.experiment.settings, gain="exp2")
    update_declared_set(
        bench.store, bench.metadata.hash_key, lambda current: replace_file_experiments(current, [changed], "a file", 1)
    )
    findings = audit_aggregates(bench.store.reconnect(), bench.settings)
    assert (findings.differences, dict(findings.checked)) == ([], {})
    assert findings.unchecked[-1] == "ranker: its events are being filled in from Kafka"


def test_expired_rows_are_no_difference(bench: StoreBench) -> None:
    """Only integers that follow from stored rows are compared; the report lists the others."""
    later = START + EXPERIMENT.horizon_ms + 2 * HOUR
    _, store = bench.connect_engine()
    progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
    progress.load_state(store.read_state())
    progress.update_end_offsets({"t:0": 5})
    progress.apply_position_updates([PositionUpdate("t:0", 5, Position(5, later))])
    RetentionCleaner(store, [bench.experiment]).clean(progress)
    findings = audit_aggregates(bench.store, bench.settings)
    assert findings.differences == []
    assert any("feedback kinds" in line for line in findings.unchecked)
    assert any("because of 1 response without user_id" in line for line in findings.unchecked)


def test_records_deleted_under_a_shorter_retention_are_no_difference(store_server: RedisServer) -> None:
    """Rows expire later than records past retention, and `retention` may be raised afterwards."""
    bench = StoreBench(store_server)
    bench.apply(
        [[make_response(1, START), make_rating(1, START + 5), make_response(3, START + 2 * EXPERIMENT.retention_ms)]]
    )
    _, store = bench.connect_engine()
    before = dump(bench.first_shard)
    RetentionCleaner(store, [bench.experiment])._delete_past_retention()
    assert dump(bench.first_shard) != before
    longer = replace(EXPERIMENT, retention_ms=10 * EXPERIMENT.retention_ms)
    assert audit_aggregates(bench.store, replace(bench.settings, experiments=(longer,))).differences == []


def test_the_audit_gives_up_if_workers_commit_meanwhile(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read before and after a commit would look like damage."""
    _, store = bench.connect_engine()
    read_rows = bench.first_shard.read_rows

    def read_rows_after_a_commit(keys: Sequence[bytes]) -> list[bytes | None]:
        store.read_state()
        assert store.commit(Commit()) == "applied"
        return read_rows(keys)

    monkeypatch.setattr(bench.first_shard, "read_rows", read_rows_after_a_commit)
    with pytest.raises(DependencyUnavailable, match="an audit needs a store that does not change"):
        audit_aggregates(bench.store, bench.settings)
