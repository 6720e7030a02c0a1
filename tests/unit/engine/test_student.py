"""A student's sums: kept by day, in whatever order responses and reactions arrive, and read back from bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import encode as packb

from monitor.clock import DAY_MS
from monitor.engine.accumulator import Accumulator
from monitor.engine.row_codec import decode_student, encode_student
from monitor.engine.student import Student
from monitor.errors import StoreOwned
from monitor.metrics.record_layout import Layout

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
    for at_ms, variant, category, difference in changes:
        student.add(at_ms, variant, category, difference, DAYS)
    return student


@given(_CHANGES, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_bytes_say_it_all(
    changes: list[tuple[int, int, int, tuple[int, ...]]], chance: random.Random
) -> None:
    """Also where what changes a response arrives before the response itself."""
    once = encode_student(_student(changes))
    assert encode_student(decode_student(once, WIDTH)) == once
    chance.shuffle(changes)
    assert encode_student(_student(changes)) == once


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
def test_bytes_of_no_student_are_damage(stored: bytes, reason: str) -> None:
    """A row that was cut or is something else."""
    with pytest.raises(StoreOwned, match=rf"the row of a student is damaged \(.*{reason}.*ab-monitor rebuild"):
        decode_student(stored, WIDTH)


def _integers(tally: Accumulator) -> list[list[int]]:
    return [record.integers() for record in tally.units.values()] + [
        record.integers() for record in tally.cohorts.values()
    ]


@pytest.mark.parametrize("points", [3, 10**6, 4 * 10**8])
def test_a_student_whom_many_share_fits_and_leaves_nothing_behind(points: int) -> None:
    """A guest's id, say; each difference is a whole number that float64 holds, as the commit script wants it."""
    tally = Accumulator(Layout(1, (30,)), [])
    sums = (3 * 10**6, 3 * 10**6, points << 30, 0)
    tally.add_anonymous(1, 0, 0, -1, sums)
    assert all(0 <= each < 2**53 for integers in _integers(tally) for each in integers)
    tally.add_anonymous(-1, 0, 0, -1, sums)
    assert not any(each for integers in _integers(tally) for each in integers)
