"""Unit tests of the stored sums of a student, by day and variant."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import encode as packb

from monitor.clock import DAY_MS
from monitor.engine.accumulator import MetricAccumulator
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
