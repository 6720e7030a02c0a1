"""The watermark: the smallest newest event time of what is not read to its end."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.pipeline.watermark import Progress
from monitor.state import Position, State
from monitor.state.keys import PENDING_CLASS
from tests.support.streams import EXPERIMENT, HOUR, START

HORIZON = EXPERIMENT.horizon_ms


def _progress(
    positions: Mapping[str, Position], ends: Mapping[str, int | None], swept: Mapping[str, int] | None = None
) -> Progress:
    progress = Progress({"1": HORIZON})
    progress.load(State(0, 0, swept or {}, positions))
    progress.see_ends(ends)
    return progress


def test_a_partition_that_lags_holds_the_watermark_back() -> None:
    """Catching up on months with one topic ahead makes nothing late."""
    progress = _progress({"a:0": Position(9, START + 900 * HOUR), "b:0": Position(1, START)}, {"a:0": 9, "b:0": 2})
    assert progress.watermark_ms() == START
    assert progress.late_before()["1"] == START - HORIZON
    assert progress.waiting() == 1


def test_read_to_the_end_it_is_the_newest_event() -> None:
    """Idle partitions hold nothing back."""
    progress = _progress({"a:0": Position(9, START + 5), "b:0": Position(1, START)}, {"a:0": 9, "b:0": 1})
    assert progress.watermark_ms() == START + 5


def test_a_partition_nobody_has_read_makes_nothing_late() -> None:
    """Without any event seen there, anything may still come; nor does an unknown end make anything late."""
    assert _progress({"a:0": Position(9, START)}, {"a:0": 9, "b:0": 3}).watermark_ms() == 0
    assert _progress({"a:0": Position(9, START)}, {"a:0": None}).watermark_ms() == START


def test_partitions_of_other_sources_do_not_count() -> None:
    """A replay that was never finished, or a topic that is no longer read, would hold the watermark back for ever."""
    positions = {"a:0": Position(9, START), "file-1:0": Position(7, START - 500 * HOUR)}
    assert _progress(positions, {"a:0": 9}).watermark_ms() == START


def test_the_watermark_goes_far_only_on_ends_that_were_asked_for() -> None:
    """What came since for partitions that were read to their end, a backlog of months maybe, must not become late."""
    progress = Progress({"1": HORIZON}, leeway_ms=HOUR)
    start = {"a:0": Position(1, START), "b:0": Position(1, START)}
    progress.load(State(0, 0, {}, start))
    progress.confirm({"a:0": 1, "b:0": 1})
    progress.see_others({"a:0": Position(2, START + HOUR)}, set())
    assert not progress.is_unsure()
    assert progress.watermark_ms() == START + HOUR
    progress.see_others({"a:0": Position(3, START + 900 * HOUR)}, set())
    assert progress.is_unsure()
    assert progress.watermark_ms() == START + HOUR
    assert progress.late_before()["1"] == START + HOUR - HORIZON
    progress.confirm({"a:0": 3, "b:0": 50})
    assert not progress.is_unsure()
    assert progress.watermark_ms() == START
    progress.see_others({"b:0": Position(50, START + 800 * HOUR)}, set())
    assert progress.is_unsure()
    progress.confirm({"a:0": 3, "b:0": 50})
    assert progress.watermark_ms() == START + 900 * HOUR


def test_what_was_swept_stays_late() -> None:
    """A row that is gone cannot be counted twice, whatever the watermark says later."""
    progress = _progress({"a:0": Position(9, START)}, {"a:0": 10}, {"1": START + HOUR, PENDING_CLASS: 7})
    assert progress.late_before() == {"1": START + HOUR, PENDING_CLASS: max(7, START - HORIZON)}


def test_other_workers_partitions_move_the_watermark_and_own_ones_do_not() -> None:
    """What the store says of one's own partitions may be older than what one knows."""
    ends = {"a:0": 100, "a:1": 100}
    progress = _progress({"a:0": Position(9, START), "a:1": Position(9, START)}, ends)
    progress.see_others({"a:0": Position(1, START - HOUR), "a:1": Position(50, START + HOUR)}, {"a:0"})
    assert progress.watermark_ms() == START
    assert progress.position("a:1").next_offset == 50


def test_partitions_far_ahead_of_the_slowest_are_to_be_held_back() -> None:
    """Only while something is behind; the slowest itself never."""
    positions = {"a:0": Position(9, START + 2 * HOUR), "b:0": Position(1, START), "b:1": Position(1, START + HOUR)}
    progress = _progress(positions, {"a:0": 20, "b:0": 2, "b:1": 2})
    assert progress.ahead(positions, HOUR) == {"a:0"}
    progress.see_ends({"a:0": 20, "b:0": 1, "b:1": 2})
    assert progress.ahead(positions, HOUR) == set()


def test_what_waits_is_not_known_before_all_ends_are() -> None:
    """Nothing is known of a log that could not be asked for."""
    for ends in ({}, {"a:0": None}, {"a:0": 9, "b:0": None}):
        assert _progress({"a:0": Position(9, START)}, ends).waiting() is None


def test_a_store_that_has_gone_back_is_noticed() -> None:
    """On the worker's own partitions; others may go on. A position that is not there any more is the worst case."""
    progress = _progress({"a:0": Position(9, START), "b:0": Position(4, START)}, {"a:0": 9, "b:0": 4})
    assert not progress.went_back({"a:0": Position(9), "b:0": Position(3)}, {"a:0", "c:0"})
    assert progress.went_back({"a:0": Position(10)}, {"a:0", "b:0"})
    assert progress.went_back({"a:0": Position(8), "b:0": Position(4)}, {"a:0"})
