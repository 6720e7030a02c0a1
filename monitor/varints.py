"""Whole numbers in as few bytes as they need.

Groups of seven bits, the lowest first, each but the last with its eighth bit set: the base-128 varints of Protocol
Buffers. Of numbers that may be negative, both signs are interleaved (zigzag): 0, -1, 1, -2 are 0, 1, 2, 3.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

_GROUP: Final = 7
_MORE: Final = 1 << _GROUP
_LEFT: Final = (1 << 64 - _GROUP) - 1
_LARGEST: Final = (1 << 63) - 1


def write_signed(writer: BytesWriter, number: i64) -> None:
    """Append a number of either sign."""
    left = number << 1 if number >= 0 else ~(number << 1)
    while left >= _MORE or left < 0:
        writer.append(u8(left & _MORE - 1 | _MORE))
        left = left >> _GROUP & _LEFT
    writer.append(u8(left))


def write_unsigned(writer: BytesWriter, number: i64) -> None:
    """Append a number that is not negative."""
    left = number
    while left >= _MORE:
        writer.append(u8(left & _MORE - 1 | _MORE))
        left >>= _GROUP
    writer.append(u8(left))


@final
class Reader:
    """Reads bytes from a place on; everything raises ValueError where they end too early."""

    __slots__ = ("_at", "_stored")

    def __init__(self, stored: bytes, at: i64) -> None:
        self._stored = stored
        self._at: i64 = at

    def left(self) -> i64:
        """Return how many bytes have not been read."""
        return len(self._stored) - self._at

    def at(self) -> i64:
        """Return the place of what is next."""
        return self._at

    def skip(self, length: i64) -> None:
        """Pass the next bytes."""
        if not 0 <= length <= self.left():
            raise ValueError(f"{self.left()} bytes are left, expected {length}")
        self._at += length

    def take(self, length: i64) -> bytes:
        """Return the next bytes."""
        at = self._at
        self.skip(length)
        return self._stored[at : self._at]

    def byte(self) -> i64:
        """Return the next byte."""
        if self._at >= len(self._stored):
            raise ValueError("no bytes are left, expected one")
        found: i64 = self._stored[self._at]
        self._at += 1
        return found

    def signed(self) -> i64:
        """Return what `write_signed` wrote."""
        number = self._groups(64)
        half = number >> 1 & _LARGEST
        return ~half if number & 1 else half

    def unsigned(self) -> i64:
        """Return what `write_unsigned` wrote."""
        return self._groups(63)

    def _groups(self, bits: i64) -> i64:
        number: i64 = 0
        shift: i64 = 0
        byte: i64 = _MORE
        while byte >= _MORE:
            if self._at >= len(self._stored) or shift >= bits:
                raise ValueError("the bytes end within a number")
            byte = self._stored[self._at]
            self._at += 1
            number |= (byte & _MORE - 1) << shift
            shift += _GROUP
        return number
