"""A batch processor needs no server: rows are read by two functions, and what changes is returned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monitor.engine import Batch, BatchProcessor, EventBatch, EventNormalizer, Experiment, IdHasher
from monitor.engine.response_row import NO_RESPONSE
from monitor.engine.row_codec import decode_response, decode_student
from monitor.events import Feedback, Response
from monitor.state import Keys
from tests.support.streams import EXPERIMENT, START, taken

_IDS = IdHasher(b"key")
_EXPERIMENT = Experiment(1, EXPERIMENT)


class Rows:
    """Stored rows in two dictionaries, and a processor of them."""

    def __init__(self) -> None:
        self.responses: dict[bytes, bytes] = {}
        self.students: dict[tuple[int, bytes], bytes] = {}
        self.reads: list[list[bytes]] = []
        self.fails = False
        self.processor = BatchProcessor(
            [_EXPERIMENT],
            _IDS,
            Keys(),
            self._read_responses,
            self._read_students,
            cached=10,
            first_version=7,
        )

    def _read_responses(self, names: list[bytes]) -> list[bytes | None]:
        self.reads.append(names)
        return [self.responses.get(name) for name in names]

    def _read_students(self, students: list[tuple[int, bytes]]) -> list[bytes | None]:
        if self.fails:
            raise OSError("no server")
        return [self.students.get(student) for student in students]

    def apply(self, *events: Response | Feedback, late_before_ms: int = 0) -> Batch:
        """Return the changes of a batch, whose rows are stored."""
        batch = self.processor.process(_batch(events), {1: late_before_ms, NO_RESPONSE: late_before_ms})
        for name, row, is_new in batch.response_rows:
            assert is_new == (name not in self.responses)
            self.responses[name] = row
        for number, rows in batch.student_rows.items():
            for name, row, is_new in rows:
                assert is_new == ((number, name) not in self.students)
                self.students[number, name] = row
        return batch


def _batch(events: Sequence[Response | Feedback]) -> EventBatch:
    return taken(EventNormalizer([_EXPERIMENT], _IDS), events)


def _response(number: int, experiment: str = EXPERIMENT.name) -> Response:
    variant = min(EXPERIMENT.variants)
    return Response(f"r{number}", START + number, experiment, variant, ("a", "b"), None, "u1")


def _rating(number: int) -> Feedback:
    return Feedback(f"f{number}", f"r{number}", START + 10, "rating", "u1", "a", 4.0)


def test_versions_count_the_writes_of_a_row() -> None:
    """A row's version is `first_version` when it is new, and one more with each batch that changes it."""
    rows = Rows()
    rows.apply(_response(1), _rating(1))
    assert decode_response(rows.responses[b"r1"]).version == 7
    assert rows.apply(_response(1), _rating(1)).response_rows == []
    rows.apply(_response(2), _response(3))
    ((_, student),) = rows.students.items()
    assert decode_student(student, _EXPERIMENT.sums_width).version == 8


def test_cached_rows_are_not_read_again() -> None:
    """Until the cache is cleared; a row that does not exist is never cached."""
    rows = Rows()
    rows.apply(_response(1))
    rows.apply(_rating(1))
    rows.apply(_rating(2), late_before_ms=START + 20)
    rows.apply(_rating(2), late_before_ms=START + 20)
    rows.processor.clear_cache()
    rows.apply(_response(1))
    assert rows.reads == [[b"r1"], [], [b"r2"], [b"r2"], [b"r1"]]


def test_a_batch_whose_rows_cannot_be_read_is_processed_again() -> None:
    """After the cache was cleared, the changes are those of the first attempt."""
    rows, expected = Rows(), Rows()
    expected.apply(_response(1), _rating(1))
    rows.fails = True
    with pytest.raises(OSError, match="no server"):
        rows.apply(_response(1), _rating(1))
    rows.fails = False
    rows.processor.clear_cache()
    rows.apply(_response(1), _rating(1))
    assert (rows.responses, rows.students) == (expected.responses, expected.students)


def test_skipped_events_are_counted_by_experiment() -> None:
    """Responses of undeclared experiments have no row."""
    batch = Rows().apply(_response(1, "other"), _response(3, "other"))
    skipped = batch.skipped_responses["other"]
    assert (skipped.events, skipped.first_ms, skipped.last_ms) == (2, START + 1, START + 3)
    assert batch.outcomes() == {("response", "skipped"): 2}
    assert batch.response_rows == []
