"""Unit tests of the stored sums of a student, by day and variant."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import encode as packb

from monitor.clock import DAY_MS
from monitor.days import day_calendar
from monitor.engine.accumulator import MetricAccumulator
from monitor.engine.local_days import LocalDays
from monitor.engine.row_codec import decode_student_row, encode_student_row
from monitor.engine.student import Student
from monitor.errors import CorruptStore
from monitor.metrics.record_layout import RecordLayout

WIDTH = 4
DAYS = 3
_CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9).map(lambda day: (20_000 + day) * DAY_MS + 5),
        st.integers(0, 2),
        st.integers(-1, 101),
        st.tuples(st.integers(-2, 2), st.integers(-1, 1), st.integers(-(2**40), 2**62), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=8,
)


def _student(changes: list[tuple[int, int, int, tuple[int, ...]]]) -> Student:
    student = Student(WIDTH)
    for timestamp_ms, variant, category, difference in changes:
        student.add_difference(timestamp_ms, variant, category, difference, DAYS)
    return student


@given(_CHANGES, st.randoms(use_true_random=False))
def test_stored_bytes_do_not_depend_on_the_order_of_changes(
    changes: list[tuple[int, int, int, tuple[int, ...]]], chance: random.Random
) -> None:
    """The change of a response may also arrive before the response. Decoded bytes are encoded to equal bytes."""
    encoded = encode_student_row(_student(changes))
    assert encode_student_row(decode_student_row(encoded, WIDTH)) == encoded
    chance.shuffle(changes)
    assert encode_student_row(_student(changes)) == encoded


_ONE_RESPONSE = (1, 0, 0, 0)


@given(st.permutations(range(5)))
def test_a_student_has_sums_of_local_days_in_any_order_of_responses(order: list[int]) -> None:
    """From 23:30 on the day before summer time begins: a day of 23 hours, and half an hour on each side of midnight."""
    times_ms = [
        round(datetime.fromisoformat(f"2026-03-{time}+00:00").timestamp() * 1000)
        for time in ("28T22:30", "28T23:30", "29T21:30", "29T22:30", "30T22:30")
    ]
    student = Student(WIDTH, LocalDays(day_calendar("Europe/Berlin")))
    for number in order:
        student.add_difference(times_ms[number], 0, -1, _ONE_RESPONSE, DAYS)
    assert student.first_exposure_day() == 20_540
    assert [student.window_sums(0, day, day + 1)[0] for day in range(4)] == [1, 2, 1, 0]
    assert student.count_active_days(0, DAYS) == DAYS
    accumulator = MetricAccumulator(RecordLayout(1, (30,)), [], student.days)
    accumulator.add_student(1, student)
    ((cell, cohort),) = accumulator.cohort_sums.items()
    assert (cell, cohort.exposures, cohort.exposure_hours) == (20_540, 1, {23: 1})


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"", "truncated"),
        (b"\0\0\0\1", "truncated"),
        (b"\0\0\0\1" + packb([1, 2]), "2 integers, expected 3 and blocks of 6"),
        (b"\0\0\0\1" + packb([1, 2, 3, "a"]), "Expected `int`, got `str`"),
        (b"\0\0\0\1" + packb([1, 2, 3, *[0] * 7]), "10 integers, expected 3 and blocks of 6"),
        (b"\0\0\0\1" + packb([1, 2, 3]) + b"\0", "trailing"),
    ],
)
def test_decoding_invalid_bytes_raises_corrupt_store(stored: bytes, reason: str) -> None:
    """The row was truncated, or is not a student."""
    with pytest.raises(CorruptStore, match=rf"the row of a student is damaged \(.*{reason}.*ab-monitor rebuild"):
        decode_student_row(stored, WIDTH)


def _integers(accumulator: MetricAccumulator) -> list[list[int]]:
    return [record.integers() for record in accumulator.unit_sums.values()] + [
        record.integers() for record in accumulator.cohort_sums.values()
    ]


@pytest.mark.parametrize("points", [3, 10**6, 4 * 10**8])
def test_sums_of_a_user_id_shared_by_many_fit_float64(points: int) -> None:
    """All users without login might share an id. Every difference fits the float64 of the commit script."""
    accumulator = MetricAccumulator(RecordLayout(1, (30,)), [])
    sums = (3 * 10**6, 3 * 10**6, points << 30, 0)
    accumulator.add_anonymous_response(1, 0, 0, -1, sums)
    assert all(0 <= number < 2**53 for integers in _integers(accumulator) for number in integers)
    accumulator.add_anonymous_response(-1, 0, 0, -1, sums)
    assert not any(number for integers in _integers(accumulator) for number in integers)
