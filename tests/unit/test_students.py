"""A student's sums: kept by day, in whatever order responses and reactions arrive, and read back from bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from monitor.aggregates import Layout
from monitor.attribution import BEFORE, DAY_MS
from monitor.students import NEVER, Student
from monitor.tally import Tally

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
    student = Student(changes[0][0], changes[0][1], WIDTH, 0, changes[0][2])
    for at_ms, variant, category, difference in changes:
        student.add(at_ms, variant, category, vec[i64](difference), 0, DAYS)
    return student


@given(_CHANGES, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_bytes_say_it_all(
    changes: list[tuple[int, int, int, tuple[int, ...]]], chance: random.Random
) -> None:
    """Also where what changes a response arrives before the response itself."""
    once = _student(changes).encode()
    again = Student(NEVER, BEFORE, WIDTH)
    again.read(once)
    assert again.encode() == once
    chance.shuffle(changes)
    assert _student(changes).encode() == once


@pytest.mark.parametrize("stored", [b"", b"\0\0\0\1", b"\0\0\0\1\x80", b"\0\0\0\1\0\0\0\0\x7e" + b"\0" * 9])
def test_what_is_no_student_is_refused(stored: bytes) -> None:
    """A row that was cut or is something else."""
    with pytest.raises(ValueError, match=r"end within a number|expected at most 4"):
        Student(NEVER, BEFORE, WIDTH).read(stored)


@pytest.mark.parametrize("points", [3, 10**6, 4 * 10**8])
def test_a_student_whom_many_share_fits_and_leaves_nothing_behind(points: int) -> None:
    """A guest's id, say; each difference is a whole number that float64 holds, as the commit script wants it."""
    tally = Tally(Layout(1, (30,)), [])
    sums = (3 * 10**6, 3 * 10**6, points << 30, 0)
    tally.add_anonymous(1, 0, 0, -1, sums)
    assert all(0 <= each < 2**53 for record in (*tally.units.values(), *tally.cohorts.values()) for each in record)
    tally.add_anonymous(-1, 0, 0, -1, sums)
    assert not any(each for record in (*tally.units.values(), *tally.cohorts.values()) for each in record)
