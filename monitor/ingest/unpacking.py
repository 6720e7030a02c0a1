"""Records out of a batch as Kafka stores them (message format v2), without an object for each of their fields.

Compiled (deploy/native.py). Format: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from monitor.varints import Reader

_FEWEST: Final = 7
"""Bytes of a record at least, its length included."""


@final
class Records:
    """What a worker wants of records that follow each other, side by side: no object for each."""

    __slots__ = ("keys", "offsets", "payloads")

    def __init__(self) -> None:
        """Begin with none."""
        self.offsets: list[int] = []
        self.keys: list[bytes | None] = []
        self.payloads: list[bytes | None] = []

    def append(self, offset: int, key: bytes | None, payload: bytes | None) -> None:
        """Append one."""
        self.offsets.append(offset)
        self.keys.append(key)
        self.payloads.append(payload)

    def extend(self, others: Records, first: int, end: int) -> None:
        """Append those of the others from the place `first` on, up to `end`."""
        self.offsets += others.offsets[first:end]
        self.keys += others.keys[first:end]
        self.payloads += others.payloads[first:end]


def records_of(data: bytes, at: i64, count: i64, base_offset: i64) -> Records:
    """Return the records of a batch, which is not compressed and begins at byte `at`; ValueError for anything else."""
    if not 0 <= count * _FEWEST <= len(data) - at:
        raise ValueError(f"{count} records in {len(data) - at} bytes")
    reader = Reader(data, at)
    found = Records()
    while count > 0:
        count -= 1
        length = reader.signed()
        left = reader.left() - length
        reader.byte()
        reader.signed()
        offset = base_offset + reader.signed()
        key = _field(reader)
        payload = _field(reader)
        headers = reader.signed()
        if headers < 0:
            raise ValueError(f"{headers} headers")
        while headers > 0:
            headers -= 1
            _field(reader)
            _field(reader)
        if reader.left() != left:
            raise ValueError(f"a record of {length} bytes ends with {reader.left()} bytes left instead of {left}")
        found.append(offset, key, payload)
    if reader.left():
        raise ValueError(f"{reader.left()} bytes behind the last record")
    return found


def _field(reader: Reader) -> bytes | None:
    """Return the next bytes, whose length stands before them; None for a length below 0."""
    length = reader.signed()
    return None if length < 0 else reader.take(length)
