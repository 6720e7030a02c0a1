"""Whole numbers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from monitor.varints import Reader, write_signed, write_unsigned

LARGEST = (1 << 62) - 1


@given(st.lists(st.tuples(st.booleans(), st.integers(-LARGEST, LARGEST))))
def test_numbers_come_back_in_turn(numbers: list[tuple[bool, int]]) -> None:
    """Of either sign, one after another, and nothing is left."""
    writer = BytesWriter()
    for signed, number in numbers:
        if signed:
            write_signed(writer, number)
        else:
            write_unsigned(writer, abs(number))
    reader = Reader(writer.getvalue(), 0)
    for signed, number in numbers:
        assert (reader.signed() if signed else reader.unsigned()) == (number if signed else abs(number))
    assert reader.left() == 0


def test_the_examples_of_protocol_buffers() -> None:
    """Its documentation on encoding: 150 is 96 01; -1 is 1, 0x7fffffff is 0xfffffffe, -0x80000000 is 0xffffffff."""
    for write, number, expected in (
        (write_unsigned, 1, "01"),
        (write_unsigned, 150, "9601"),
        (write_signed, 0, "00"),
        (write_signed, -1, "01"),
        (write_signed, 1, "02"),
        (write_signed, -2, "03"),
        (write_signed, 0x7FFFFFFF, "feffffff0f"),
        (write_signed, -0x80000000, "ffffffff0f"),
    ):
        writer = BytesWriter()
        write(writer, number)
        assert writer.getvalue().hex() == expected


def test_what_ends_too_early_is_refused() -> None:
    """Within a number, before one, and a number that never ends."""
    for stored in (b"", b"\x80", b"\xff" * 20 + b"\0"):
        with pytest.raises(ValueError, match="end within a number"):
            Reader(stored, 0).unsigned()
        with pytest.raises(ValueError, match="end within a number"):
            Reader(stored, 0).signed()
    with pytest.raises(ValueError, match="no bytes are left, expected one"):
        Reader(b"a", 1).byte()
    for length in (2, -1):
        with pytest.raises(ValueError, match=f"1 bytes are left, expected {length}"):
            Reader(b"a", 0).take(length)
