"""The watermark: the smallest newest event time of what is not read to its end."""

from __future__ import annotations

from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.progress import Progress
from monitor.store import Keys, Position, State
from tests.support.streams import EXPERIMENT, HOUR, START

HORIZON = EXPERIMENT.horizon_ms


def _progress(positions: dict[str, Position], swept: dict[str, int] | None = None) -> Progress:
    progress = Progress([Experiment(1, EXPERIMENT, Keys())])
    progress.load(State(0, 0, swept or {}, positions))
    return progress


def test_a_partition_that_lags_holds_the_watermark_back() -> None:
    """Catching up on months with one topic ahead makes nothing late."""
    progress = _progress({"a:0": Position(9, START + 900 * HOUR, at_end=True), "b:0": Position(1, START, at_end=False)})
    assert progress.watermark_ms() == START
    assert progress.late_before()["1"] == START - HORIZON


def test_read_to_the_end_it_is_the_newest_event() -> None:
    """Idle partitions hold nothing back."""
    progress = _progress({"a:0": Position(9, START + 5, at_end=True), "b:0": Position(1, START, at_end=True)})
    assert progress.watermark_ms() == START + 5


def test_a_partition_nobody_has_read_makes_nothing_late() -> None:
    """Without any event seen there, anything may still come."""
    progress = _progress({"a:0": Position(9, START, at_end=True)})
    progress.start({"b:0": 0})
    assert progress.watermark_ms() == 0
    assert progress.expected("b:0") is None


def test_what_was_swept_stays_late() -> None:
    """A row that is gone cannot be counted twice, whatever the watermark says later."""
    progress = _progress({"a:0": Position(9, START, at_end=False)}, {"1": START + HOUR, PENDING_CLASS: 7})
    assert progress.late_before() == {"1": START + HOUR, PENDING_CLASS: max(7, START - HORIZON)}


def test_other_workers_partitions_move_the_watermark_and_own_ones_do_not() -> None:
    """What the store says of one's own partitions may be older than what one knows."""
    progress = _progress({"a:0": Position(9, START, at_end=False), "a:1": Position(9, START, at_end=False)})
    later = {"a:0": Position(1, START - HOUR, at_end=False), "a:1": Position(50, START + HOUR, at_end=False)}
    progress.see_others(later, {"a:0"})
    assert progress.watermark_ms() == START
    assert progress.next_offset("a:1") == 50
