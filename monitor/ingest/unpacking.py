"""Records out of a batch as Kafka stores them (message format v2), without an object for each of their fields.

Compiled (deploy/native.py). Format: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

_FEWEST: Final = 7
"""Bytes of a record at least, its length included."""
_LAST_SHIFT: Final = 63
_MORE: Final = 128
"""Set in every byte of an integer but its last."""


@final
class Record:
    """What a worker wants of a record."""

    __slots__ = ("key", "offset", "value")

    def __init__(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take what was read."""
        self.offset = offset
        self.key = key
        self.value = value


@final
class _Cursor:
    """Reads a batch's records from front to back."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes, at: i64) -> None:
        self._data = data
        self._end: i64 = len(data)
        self.at: i64 = at

    def varint(self) -> i64:
        """Return the next integer, zigzag."""
        found: i64 = 0
        shift: i64 = 0
        while True:
            if self.at >= self._end or shift > _LAST_SHIFT:
                raise ValueError(f"an integer does not end at byte {self.at} of {self._end}")
            byte: i64 = self._data[self.at]
            self.at += 1
            found |= (byte & ~_MORE) << shift
            if not byte & _MORE:
                return (found >> 1) ^ -(found & 1)
            shift += 7

    def field(self) -> bytes | None:
        """Return the next bytes, whose length stands before them; None for a length below 0."""
        length = self.varint()
        if length < 0:
            return None
        begin = self.at
        if length > self._end - begin:
            raise ValueError(f"{length} bytes at byte {begin} of {self._end}")
        self.at = begin + length
        return self._data[begin : self.at]


def records_of(data: bytes, at: i64, count: i64, base_offset: i64) -> list[Record]:
    """Return the records of a batch, which is not compressed and begins at byte `at`; ValueError for anything else."""
    if count * _FEWEST > len(data) - at:
        raise ValueError(f"{count} records in {len(data) - at} bytes")
    cursor = _Cursor(data, at)
    found: list[Record] = []
    while count > 0:
        count -= 1
        length = cursor.varint()
        end = cursor.at + length
        cursor.at += 1
        cursor.varint()
        offset = base_offset + cursor.varint()
        key = cursor.field()
        value = cursor.field()
        headers = cursor.varint()
        if headers < 0:
            raise ValueError(f"{headers} headers")
        while headers > 0:
            headers -= 1
            cursor.field()
            cursor.field()
        if cursor.at != end:
            raise ValueError(f"a record of {length} bytes ends at byte {cursor.at} instead of {end}")
        found.append(Record(offset, key, value))
    if cursor.at != len(data):
        raise ValueError(f"{len(data) - cursor.at} bytes behind the last record")
    return found
