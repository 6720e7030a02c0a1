"""Records out of a batch as Kafka stores them (message format v2), without an object for each of their fields.

Compiled (deploy/native.py). Format: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i64

from monitor.varints import Reader

_FEWEST: Final = 7
"""Bytes of a record at least, its length included."""
_PLACES: Final[i64] = 4
"""Of a record: where its key begins and ends, and its payload."""


@final
class Records:
    """Records of one partition that follow each other, where they stand in the bytes of their batches."""

    __slots__ = ("_places", "_stored", "offsets")

    def __init__(self) -> None:
        """Begin with none."""
        self.offsets: list[int] = []
        self._stored: list[bytes] = []
        """Of each, what it stands in."""
        self._places = vec[i64]()
        """Of each, where its key begins and ends there, and its payload; what is None begins at -1."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.offsets)

    def __getitem__(self, at: int) -> bytes | None:
        """Return a payload."""
        return self._part(at, 2)

    def __iter__(self) -> Iterator[bytes | None]:
        """Yield all payloads."""
        for at in range(len(self.offsets)):
            yield self[at]

    def key(self, at: int) -> bytes | None:
        """Return a key."""
        return self._part(at, 0)

    def _part(self, at: int, which: i64) -> bytes | None:
        if not 0 <= at < len(self.offsets):
            raise IndexError(at)
        place = _PLACES * i64(at) + which
        begin, end = self._places[place], self._places[place + 1]
        return None if begin < 0 else self._stored[at][begin:end]

    def stored(self, at: i64) -> bytes | None:
        """Return the bytes that a payload stands in, from `begin` up to `end`; None if there is no payload."""
        return None if self.begin(at) < 0 else self._stored[at]

    def begin(self, at: i64) -> i64:
        """Return where a payload begins in its bytes."""
        return self._places[_PLACES * at + 2]

    def end(self, at: i64) -> i64:
        """Return where it ends."""
        return self._places[_PLACES * at + 3]

    def append(self, offset: int, stored: bytes, key: i64, key_end: i64, payload: i64, payload_end: i64) -> None:
        """Append one that stands in these bytes."""
        self.offsets.append(offset)
        self._stored.append(stored)
        self._places = append(append(append(append(self._places, key), key_end), payload), payload_end)

    def append_apart(self, offset: int, key: bytes | None, payload: bytes | None) -> None:
        """Append one that stands nowhere yet."""
        key_begin: i64 = -1
        key_end: i64 = -1
        begin: i64 = -1
        end: i64 = -1
        stored = b""
        if key is not None:
            key_begin, key_end, stored = 0, len(key), key
        if payload is not None:
            begin, end, stored = len(stored), len(stored) + len(payload), stored + payload
        self.append(offset, stored, key_begin, key_end, begin, end)

    def extend(self, others: Records, first: i64, end: i64) -> None:
        """Append those of the others from the place `first` on, up to `end`."""
        self.offsets += others.offsets[first:end]
        self._stored += others._stored[first:end]
        self._places = extend(self._places, others._places[_PLACES * first : _PLACES * end])


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
        key_end = reader.at()
        payload = _field(reader)
        payload_end = reader.at()
        headers = reader.signed()
        if headers < 0:
            raise ValueError(f"{headers} headers")
        while headers > 0:
            headers -= 1
            _field(reader)
            _field(reader)
        if reader.left() != left:
            raise ValueError(f"a record of {length} bytes ends with {reader.left()} bytes left instead of {left}")
        found.append(offset, data, key, key_end, payload, payload_end)
    if reader.left():
        raise ValueError(f"{reader.left()} bytes behind the last record")
    return found


def _field(reader: Reader) -> i64:
    """Pass the next bytes, whose length stands before them; return where they begin, -1 for a length below 0."""
    length = reader.signed()
    if length < 0:
        return -1
    begin = reader.at()
    reader.skip(length)
    return begin
