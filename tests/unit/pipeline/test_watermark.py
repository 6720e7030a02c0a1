"""The watermark: the smallest newest event time of the partitions that are not read to their end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from monitor.config import LimitSettings
from monitor.engine import EventBatch
from monitor.errors import InputRejected
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.watermark import WatermarkTracker
from monitor.sources import PartitionRecords, RejectedRecord
from monitor.state import Position, RejectionCounts, StoreState
from monitor.state.keys import PENDING_FEEDBACK
from tests.support.streams import EXPERIMENT, HOUR, START, records_of

HORIZON = EXPERIMENT.horizon_ms


def _tracker(
    positions: Mapping[str, Position],
    end_offsets: Mapping[str, int | None],
    expired_before_ms: Mapping[str, int] | None = None,
) -> WatermarkTracker:
    tracker = WatermarkTracker({"1": HORIZON})
    tracker.load_state(StoreState(0, 0, expired_before_ms or {}, positions))
    tracker.update_end_offsets(end_offsets)
    return tracker


def test_the_slowest_partition_determines_the_watermark() -> None:
    """No event is late while a backlog of months is read, even with a topic far ahead."""
    tracker = _tracker({"a:0": Position(9, START + 900 * HOUR), "b:0": Position(1, START)}, {"a:0": 9, "b:0": 2})
    assert tracker.watermark_ms() == START
    assert tracker.late_before_ms()["1"] == START - HORIZON
    assert tracker.total_lag_events() == 1


def test_the_watermark_is_the_newest_event_when_all_partitions_are_at_their_end() -> None:
    """Idle partitions do not delay the watermark."""
    tracker = _tracker({"a:0": Position(9, START + 5), "b:0": Position(1, START)}, {"a:0": 9, "b:0": 1})
    assert tracker.watermark_ms() == START + 5


def test_no_event_is_late_while_a_partition_is_unread_or_its_end_unknown() -> None:
    """An unread partition may contain events of any time."""
    assert _tracker({"a:0": Position(9, START)}, {"a:0": 9, "b:0": 3}).watermark_ms() == 0
    assert _tracker({"a:0": Position(9, START)}, {"a:0": None}).watermark_ms() == START


def test_stored_partitions_of_other_sources_do_not_delay_the_watermark() -> None:
    """An unfinished replay, or a topic that is no longer read, would stop the watermark for ever."""
    positions = {"a:0": Position(9, START), "file-1:0": Position(7, START - 500 * HOUR)}
    assert _tracker(positions, {"a:0": 9}).watermark_ms() == START


def test_the_watermark_advances_far_only_after_end_offsets_are_confirmed() -> None:
    """Events of a backlog that has just arrived must not become late."""
    tracker = WatermarkTracker({"1": HORIZON}, max_unconfirmed_advance_ms=HOUR)
    start = {"a:0": Position(1, START), "b:0": Position(1, START)}
    tracker.load_state(StoreState(0, 0, {}, start))
    tracker.confirm_end_offsets({"a:0": 1, "b:0": 1})
    tracker.update_other_workers({"a:0": Position(2, START + HOUR)}, set())
    assert not tracker.needs_confirmation()
    assert tracker.watermark_ms() == START + HOUR
    tracker.update_other_workers({"a:0": Position(3, START + 900 * HOUR)}, set())
    assert tracker.needs_confirmation()
    assert tracker.watermark_ms() == START + HOUR
    assert tracker.late_before_ms()["1"] == START + HOUR - HORIZON
    tracker.confirm_end_offsets({"a:0": 3, "b:0": 50})
    assert not tracker.needs_confirmation()
    assert tracker.watermark_ms() == START
    tracker.update_other_workers({"b:0": Position(50, START + 800 * HOUR)}, set())
    assert tracker.needs_confirmation()
    tracker.confirm_end_offsets({"a:0": 3, "b:0": 50})
    assert tracker.watermark_ms() == START + 900 * HOUR


def test_events_before_the_expiry_boundary_are_late_at_any_watermark() -> None:
    """The response of a deleted row must not be counted a second time."""
    tracker = _tracker({"a:0": Position(9, START)}, {"a:0": 10}, {"1": START + HOUR, PENDING_FEEDBACK: 7})
    assert tracker.late_before_ms() == {"1": START + HOUR, PENDING_FEEDBACK: max(7, START - HORIZON)}


def test_held_experiments_and_held_pending_feedback_do_not_become_late() -> None:
    """A backfill may still apply their old events. Pending feedback before the stored boundary is deleted already."""
    tracker = WatermarkTracker({"1": HORIZON, "2": HORIZON}, held=["2"])
    tracker.load_state(StoreState(0, 0, {PENDING_FEEDBACK: 7}, {"a:0": Position(9, START)}))
    tracker.update_end_offsets({"a:0": 9})
    late_before_ms = START - HORIZON
    assert tracker.late_before_ms() == {"1": late_before_ms, "2": 0, PENDING_FEEDBACK: late_before_ms}
    tracker.hold(["2", PENDING_FEEDBACK])
    assert tracker.late_before_ms() == {"1": late_before_ms, "2": 0, PENDING_FEEDBACK: 7}
    tracker.hold([])
    assert set(tracker.late_before_ms().values()) == {late_before_ms}


def test_stored_positions_replace_those_of_other_workers_partitions_only() -> None:
    """Stored positions of assigned partitions may be older than the tracked positions."""
    end_offsets = {"a:0": 100, "a:1": 100}
    tracker = _tracker({"a:0": Position(9, START), "a:1": Position(9, START)}, end_offsets)
    tracker.update_other_workers({"a:0": Position(1, START - HOUR), "a:1": Position(50, START + HOUR)}, {"a:0"})
    assert tracker.watermark_ms() == START
    assert tracker.position("a:1").next_offset == 50


def test_partitions_far_ahead_of_the_slowest_are_paused_during_a_backlog() -> None:
    """When all partitions are at their end, no partition is paused."""
    positions = {"a:0": Position(9, START + 2 * HOUR), "b:0": Position(1, START), "b:1": Position(1, START + HOUR)}
    tracker = _tracker(positions, {"a:0": 20, "b:0": 2, "b:1": 2})
    assert tracker.partitions_to_pause(positions, HOUR) == {"a:0"}
    tracker.update_end_offsets({"a:0": 20, "b:0": 1, "b:1": 2})
    assert tracker.partitions_to_pause(positions, HOUR) == set()


def test_an_unknown_end_offset_makes_the_total_lag_unknown() -> None:
    """A partial sum would look like a small lag."""
    for end_offsets in ({}, {"a:0": None}, {"a:0": 9, "b:0": None}):
        assert _tracker({"a:0": Position(9, START)}, end_offsets).total_lag_events() is None


def test_an_unknown_position_makes_the_total_lag_unknown() -> None:
    """Before the stored positions are read, all records of the topic would count as waiting."""
    assert _tracker({}, {"a:0": 192_692}).total_lag_events() is None
    assert _tracker({"a:0": Position(192_277)}, {"a:0": 192_692}).total_lag_events() == 415


def test_the_limits_on_rejected_records_apply_from_the_accepted_offset_on_with_zero_counts() -> None:
    """Records before the offset may all be rejected, also the run that the store has counted."""
    limits = LimitSettings(max_consecutive_rejected=2)
    tracker = _tracker({"a:0": Position(5, rejections=RejectionCounts(2, 9, 9))}, {"a:0": 9})

    def next_counts(start: int, end: int) -> RejectionCounts:
        records = records_of([None] * (end - start), start)
        rejected = [RejectedRecord("a:0", record.offset, None, "empty_payload", "") for record in records]
        polled = [PartitionRecords("a:0", "a", start, records, end)]
        (update,) = tracker.next_position_updates(polled, DecodedBatch(EventBatch(), rejected), limits, {"a:0": 9})
        tracker.apply_position_updates([update])
        return update.position.rejections

    assert next_counts(5, 9) == RejectionCounts()
    assert tracker.have_reached({"a:0": 9})
    assert next_counts(9, 11) == RejectionCounts(2, 2, 2)
    with pytest.raises(InputRejected, match="3 consecutive events were rejected"):
        next_counts(11, 12)


def test_a_store_that_has_lost_commits_is_detected_by_assigned_partitions() -> None:
    """A stored position is older than the tracked position, or missing. Other workers' partitions do not count."""
    tracker = _tracker({"a:0": Position(9, START), "b:0": Position(4, START)}, {"a:0": 9, "b:0": 4})
    assert not tracker.is_store_behind({"a:0": Position(9), "b:0": Position(3)}, {"a:0", "c:0"})
    assert tracker.is_store_behind({"a:0": Position(10)}, {"a:0", "b:0"})
    assert tracker.is_store_behind({"a:0": Position(8), "b:0": Position(4)}, {"a:0"})
