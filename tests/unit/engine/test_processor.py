"""Unit tests of the batch processor, with stored rows in dictionaries instead of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from monitor.engine import PERIOD_BITS, BatchChanges, BatchProcessor, EventBatch, EventNormalizer, Experiment, IdHasher
from monitor.engine.response_row import NO_RESPONSE
from monitor.engine.row_codec import decode_response_row, decode_student_row
from monitor.events import Feedback, Response
from monitor.state import StoreKeys
from tests.support.streams import EXPERIMENT, HOUR, START, changed, normalize_events

_IDS = IdHasher(b"key")
_EXPERIMENT = Experiment(1, EXPERIMENT)


class StoredRows:
    """Two dictionaries of stored rows, and a processor that reads the rows."""

    def __init__(
        self,
        experiments: Sequence[Experiment] = (_EXPERIMENT,),
        *,
        superseded_numbers: frozenset[int] = frozenset(),
        backfilled_number: int | None = None,
    ) -> None:
        self.normalizer = EventNormalizer(experiments, _IDS)
        self.numbers = [experiment.number for experiment in experiments]
        self.responses: dict[bytes, bytes] = {}
        self.students: dict[tuple[int, bytes], bytes] = {}
        self.reads: list[list[bytes]] = []
        self.is_failing = False
        self.processor = BatchProcessor(
            experiments,
            _IDS,
            StoreKeys(),
            self._read_responses,
            self._read_students,
            cached_rows=10,
            first_version=7,
            superseded_numbers=superseded_numbers,
            backfilled_number=backfilled_number,
        )

    def _read_responses(self, names: list[bytes]) -> list[bytes | None]:
        self.reads.append(names)
        return [self.responses.get(name) for name in names]

    def _read_students(self, students: list[tuple[int, bytes]]) -> list[bytes | None]:
        if self.is_failing:
            raise OSError("no server")
        return [self.students.get(student) for student in students]

    def apply(self, *events: Response | Feedback, late_before_ms: int = 0) -> BatchChanges:
        """Process a batch of events, store the changed rows, and return the changes."""
        late_before = dict.fromkeys([*self.numbers, NO_RESPONSE], late_before_ms)
        batch = self.processor.process(normalize_events(self.normalizer, events), late_before)
        for name, row, is_new in batch.response_rows:
            assert is_new == (name not in self.responses)
            self.responses[name] = row
        for number, rows in batch.student_rows.items():
            for name, row, is_new in rows:
                assert is_new == ((number, name) not in self.students)
                self.students[number, name] = row
        return batch


def _response(number: int, experiment: str = EXPERIMENT.name) -> Response:
    variant = min(EXPERIMENT.variants)
    return Response(f"r{number}", START + number, experiment, variant, ("a", "b"), None, "u1")


def _rating(number: int) -> Feedback:
    return Feedback(f"f{number}", f"r{number}", START + 10, "rating", "u1", "a", 4.0)


def test_each_write_raises_the_version_of_a_row_by_one() -> None:
    """A new row has the version `first_version`; each batch that changes the row raises the version by 1."""
    store = StoredRows()
    store.apply(_response(1), _rating(1))
    assert decode_response_row(store.responses[b"r1"]).version == 7
    assert store.apply(_response(1), _rating(1)).response_rows == []
    store.apply(_response(2), _response(3))
    ((_, student),) = store.students.items()
    assert decode_student_row(student, _EXPERIMENT.sums_width).version == 8


def test_cached_rows_are_read_once() -> None:
    """Rows are read a second time after the cache was cleared; a missing row is never cached."""
    store = StoredRows()
    store.apply(_response(1))
    store.apply(_rating(1))
    store.apply(_rating(2), late_before_ms=START + 20)
    store.apply(_rating(2), late_before_ms=START + 20)
    store.processor.clear_cache()
    store.apply(_response(1))
    assert store.reads == [[b"r1"], [], [b"r2"], [b"r2"], [b"r1"]]


def test_a_batch_whose_rows_cannot_be_read_is_processed_again() -> None:
    """After the cache is cleared, the same events make the same changes as without a failure."""
    store, expected_store = StoredRows(), StoredRows()
    expected_store.apply(_response(1), _rating(1))
    store.is_failing = True
    with pytest.raises(OSError, match="no server"):
        store.apply(_response(1), _rating(1))
    store.is_failing = False
    store.processor.clear_cache()
    store.apply(_response(1), _rating(1))
    assert (store.responses, store.students) == (expected_store.responses, expected_store.students)


def test_skipped_events_are_counted_by_experiment_and_variant() -> None:
    """Responses of undeclared experiments have no row."""
    batch = StoredRows().apply(_response(1, "other"), _response(3, "other"))
    ((names, skipped),) = batch.skipped_responses.items()
    assert names == ("other", "control")
    assert (skipped.events, skipped.first_ms, skipped.last_ms) == (2, START + 1, START + 3)
    assert batch.count_outcomes() == {("response", "skipped"): 2}
    assert batch.response_rows == []


def test_events_are_counted_by_the_delay_of_their_arrival() -> None:
    """An event that is sent again is not counted, nor is one whose record has no timestamp."""
    store = StoredRows()
    normalizer, events = EventNormalizer([_EXPERIMENT], _IDS), EventBatch()
    two_hours_ms, four_days_ms = 2 * 3_600_000, 4 * 86_400_000
    normalizer.append_event(events, _response(1), START + 1 + two_hours_ms)
    normalizer.append_event(events, _response(1), START + 1 + four_days_ms)
    normalizer.append_event(events, _rating(1), START + 10 + four_days_ms)
    normalizer.append_event(events, _response(2), START)
    normalizer.append_event(events, _response(3))
    batch = store.processor.process(events, {1: 0, NO_RESPONSE: 0})
    (changes,) = batch.variant_changes.values()
    assert changes.delay_counts == {0: 1, 1: 1, 4: 1}


def test_reactions_that_do_not_count_are_counted_as_of_the_set_of_events() -> None:
    """The order of feedback, response and revised response does not matter."""
    early = Feedback("f1", "r1", START - 60_000, "rating", "u1", "a", 4.0)
    response = _response(1)
    earlier_response = Response("r1", START - 60_000, EXPERIMENT.name, response.variant, ("a",), None, "u1")
    events: list[Response | Feedback] = [early, response]
    for order in permutations(events):
        store = StoredRows()
        assert _uncounted(store.apply(event) for event in order) == {"before_response": 1}
    for order in permutations([*events, earlier_response]):
        store = StoredRows()
        assert _uncounted(store.apply(event) for event in order) == {}


def _uncounted(batches: Iterable[BatchChanges]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for batch in batches:
        for changes in batch.variant_changes.values():
            totals.update(changes.uncounted_reactions)
    return {reason: count for reason, count in totals.items() if count}


def test_late_responses_are_counted_by_variant() -> None:
    """The variant whose producer is slow misses responses."""
    batch = StoredRows().apply(_response(1), _response(2), _response(30), late_before_ms=START + 20)
    assert batch.late_responses == {1 << 8: 2}


def test_rejected_responses_are_counted_by_variant_and_reason() -> None:
    """A response of an unknown time may be within the experiment; one of an undeclared variant has its own count."""
    experiment = Experiment(1, replace(EXPERIMENT, starts_at_ms=START))
    normalizer, batch = EventNormalizer([experiment], _IDS), EventBatch()
    for variant, at_ms in (("treatment", START), ("treatment", None), ("treatment", START - 1), ("T", START)):
        normalizer.count_rejected_response(batch, EXPERIMENT.name, variant, at_ms, "repeated_item")
    normalizer.count_rejected_response(batch, "other experiment", "treatment", START, "repeated_item")
    normalizer.append_event(batch, Response("r1", START, EXPERIMENT.name, "T", ()))
    normalizer.append_event(batch, Response("r2", START - 1, EXPERIMENT.name, "T", ()))
    assert batch.rejected_responses == {(experiment.variant_keys["treatment"], "repeated_item"): 2}
    assert batch.undeclared_variants == {(1, "T"): 2}


def test_placeholder_users_are_counted_by_variant() -> None:
    """Their responses count as responses without a user id."""
    normalizer, batch = EventNormalizer([_EXPERIMENT], _IDS), EventBatch()
    normalizer.append_event(batch, Response("r1", START, EXPERIMENT.name, "control", (), has_placeholder_user=True))
    normalizer.append_event(batch, Response("r2", START, EXPERIMENT.name, "control", ()))
    assert batch.placeholder_users == {_EXPERIMENT.variant_keys["control"]: 1}


def test_responses_with_repeated_items_are_counted_by_variant() -> None:
    """Also with a placeholder for the user; a response that does not count has no count here."""
    normalizer, batch = EventNormalizer([_EXPERIMENT], _IDS), EventBatch()
    for number, variant in enumerate(("control", "control", "treatment", "T")):
        response = Response(f"r{number}", START, EXPERIMENT.name, variant, ("a",), has_repeated_items=True)
        normalizer.append_event(batch, changed(response, has_placeholder_user=number == 1))
    normalizer.append_event(batch, Response("r9", START, EXPERIMENT.name, "control", ("a",)))
    keys = _EXPERIMENT.variant_keys
    assert batch.repeated_items == {keys["control"]: 2, keys["treatment"]: 1}
    assert batch.placeholder_users == {keys["control"]: 1}


_REDEFINED = Experiment(2, EXPERIMENT)
_OTHER = Experiment(3, replace(EXPERIMENT, name="other"))


def _superseding_store(*, backfilled_number: int | None = None) -> StoredRows:
    """Return a store with two rated responses under number 1, which number 2 supersedes."""
    old_store = StoredRows()
    old_store.apply(_response(1), _rating(1), _response(2), _rating(2))
    store = StoredRows([_REDEFINED], superseded_numbers=frozenset({1}), backfilled_number=backfilled_number)
    store.responses = old_store.responses
    return store


def _cell(number: int, timestamp_ms: int) -> int:
    return number << PERIOD_BITS | timestamp_ms // HOUR


def test_a_row_with_a_superseded_number_counts_as_blank_and_keeps_its_version() -> None:
    """The reactions of the old row do not count, and nothing is subtracted from the sums of the new number."""
    store, new_store = _superseding_store(), StoredRows([_REDEFINED])
    batch, expected = store.apply(_response(1)), new_store.apply(_response(1))
    row = decode_response_row(store.responses[b"r1"])
    assert (row.version, row.variant_key >> 8, row.reactions) == (8, 2, ())
    assert store.students == new_store.students
    assert batch.metric_accumulators[2].response_sums.keys() == expected.metric_accumulators[2].response_sums.keys()
    for variant, sums in batch.metric_accumulators[2].response_sums.items():
        assert sums.integers() == expected.metric_accumulators[2].response_sums[variant].integers()


@pytest.mark.parametrize("event", [_response(1), _rating(1)])
def test_a_row_that_leaves_a_superseded_number_does_not_expire_with_the_old_number(
    event: Response | Feedback,
) -> None:
    """The list of the old number still names the row, so the row is marked as moved."""
    batch = _superseding_store().apply(event)
    assert batch.expiry_removals == {_cell(1, START + 1): [b"r1"]}
    number = 2 if isinstance(event, Response) else NO_RESPONSE
    assert batch.expiry_additions == {_cell(number, START + 1): [b"r1"]}


def test_a_row_is_moved_from_a_superseded_number_once() -> None:
    """Later batches change the cached row as any other row."""
    store = _superseding_store()
    store.apply(_rating(1))
    batch = store.apply(_response(1))
    assert batch.expiry_removals == {}
    assert store.apply(_rating(1)).response_rows == []
    assert len(decode_response_row(store.responses[b"r1"]).reactions) == 1


def test_a_change_of_a_superseded_row_depends_on_the_expiry_of_the_old_number() -> None:
    """If the old row has been deleted meanwhile, a new row must be inserted instead."""
    batch = _superseding_store().apply(_response(1))
    assert batch.oldest_dependencies_ms == {1: START + 1, 2: START + 1}


def test_late_events_leave_a_superseded_row_unchanged() -> None:
    """The row expires with the old number."""
    store = _superseding_store()
    batch = store.apply(_response(1), _rating(1), late_before_ms=START + 20)
    assert (batch.response_rows, batch.expiry_removals) == ([], {})
    assert store.apply(_rating(1)).expiry_removals == {_cell(1, START + 1): [b"r1"]}


def test_a_backfill_ignores_reactions_to_responses_without_a_row_of_its_experiment() -> None:
    """No row, pending feedback, a superseded row, and the row of another experiment remain as they are."""
    store = _superseding_store(backfilled_number=2)
    pending = StoredRows()
    pending.apply(_rating(5))
    store.responses |= pending.responses
    rows = dict(store.responses)
    other_rating = Feedback("other", "r5", START + 11, "rating", "u2", "a", 1.0)
    batch = store.apply(_rating(1), _rating(4), other_rating)
    assert batch.count_outcomes() == {("feedback", "ignored"): 3}
    assert (store.responses, batch.skipped_reactions, batch.oldest_dependencies_ms) == (rows, {}, {})
    other_store = StoredRows([_EXPERIMENT, _OTHER], backfilled_number=3)
    other_store.responses = dict(pending.responses)
    other_store.apply(_response(6, "other"))
    batch = other_store.apply(_rating(6), _rating(5))
    assert batch.count_outcomes() == {("feedback", "applied"): 1, ("feedback", "ignored"): 1}


def test_a_backfill_ignores_responses_of_other_experiments() -> None:
    """The workers have counted them as skipped already."""
    store = StoredRows([_REDEFINED], backfilled_number=2)
    batch = store.apply(_response(1, "undeclared"))
    assert batch.count_outcomes() == {("response", "ignored"): 1}
    assert (batch.skipped_responses, store.responses) == ({}, {})


def test_a_backfill_and_a_worker_agree_on_a_response_id_of_two_experiments() -> None:
    """The earliest response has the row, whichever experiment is backfilled."""
    first, second = _response(1), changed(_response(1, "other"), timestamp_ms=START)
    undisturbed = StoredRows([_EXPERIMENT, _OTHER])
    undisturbed.apply(first, second, _rating(1))
    worker = StoredRows([_EXPERIMENT])
    worker.apply(first, second, _rating(1))
    backfill = StoredRows([_EXPERIMENT, _OTHER], backfilled_number=3)
    backfill.responses, backfill.students = worker.responses, worker.students
    backfill.apply(second)
    backfill.apply(_rating(1))
    actual, expected = (decode_response_row(store.responses[b"r1"]) for store in (backfill, undisturbed))
    assert (actual.variant_key, actual.reactions) == (expected.variant_key, expected.reactions)
