"""Records of one partition, without an object for each of their fields. Compiled (deploy/native.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i64

_NUMBERS: Final[i64] = 5
"""Of a record: its offset, where its key begins and ends, and its payload."""
_KEY: Final[i64] = 1
_PAYLOAD: Final[i64] = 3


@final
class Records:
    """Records of one partition that follow each other, where they stand in the bytes of their batches."""

    __slots__ = ("_keyed", "_numbers", "_stored")

    def __init__(self) -> None:
        """Begin with none."""
        self._keyed: list[bytes] = []
        """Of each, what its key stands in."""
        self._stored: list[bytes] = []
        """Of each, what its payload stands in."""
        self._numbers = vec[i64]()
        """Of each, `_NUMBERS`; a key or payload that is None begins at -1."""

    @staticmethod
    def of(
        offsets: Sequence[int], payloads: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Records:
        """Return as many records that stand by themselves; without `keys` none has one."""
        found = Records()
        known = [None] * len(payloads) if keys is None else keys
        for offset, key, payload in zip(offsets, known, payloads, strict=True):
            found.append_apart(offset, key, payload)
        return found

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers) // _NUMBERS

    def __getitem__(self, at: int) -> bytes | None:
        """Return a payload."""
        return self._part(self._stored, at, _PAYLOAD)

    def __iter__(self) -> Iterator[bytes | None]:
        """Return all payloads."""
        return iter([self[at] for at in range(len(self))])

    @property
    def offsets(self) -> Sequence[int]:
        """Return all offsets."""
        return [self.offset(at) for at in range(len(self))]

    def offset(self, at: i64) -> int:
        """Return an offset; that of the last one is at -1."""
        if at < 0:
            at += len(self)
        return self._numbers[_NUMBERS * at]

    def place_of(self, offset: i64) -> int:
        """Return how many have lower offsets."""
        low: i64 = 0
        high: i64 = len(self)
        while low < high:
            middle = (low + high) >> 1
            if self._numbers[_NUMBERS * middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def key(self, at: int) -> bytes | None:
        """Return a key."""
        return self._part(self._keyed, at, _KEY)

    def _part(self, stored: list[bytes], at: i64, which: i64) -> bytes | None:
        if not 0 <= at < len(self):
            raise IndexError(at)
        place = _NUMBERS * at + which
        begin, end = self._numbers[place], self._numbers[place + 1]
        return None if begin < 0 else stored[at][begin:end]

    def stored(self, at: i64) -> bytes | None:
        """Return the bytes that a payload stands in, from `begin` up to `end`; None if there is no payload."""
        return None if self.begin(at) < 0 else self._stored[at]

    def begin(self, at: i64) -> i64:
        """Return where a payload begins in its bytes."""
        return self._numbers[_NUMBERS * at + _PAYLOAD]

    def end(self, at: i64) -> i64:
        """Return where it ends."""
        return self._numbers[_NUMBERS * at + _PAYLOAD + 1]

    def append(self, offset: i64, stored: bytes, key: i64, key_end: i64, payload: i64, payload_end: i64) -> None:
        """Append one that stands in these bytes."""
        self._append(offset, stored, key, key_end, stored, payload, payload_end)

    def append_apart(self, offset: int, key: bytes | None, payload: bytes | None) -> None:
        """Append one that stands nowhere yet."""
        key_begin: i64 = -1
        key_end: i64 = -1
        begin: i64 = -1
        end: i64 = -1
        if key is not None:
            key_begin, key_end = 0, len(key)
        if payload is not None:
            begin, end = 0, len(payload)
        self._append(offset, key or b"", key_begin, key_end, payload or b"", begin, end)

    def _append(
        self, offset: i64, keyed: bytes, key: i64, key_end: i64, stored: bytes, payload: i64, payload_end: i64
    ) -> None:
        self._keyed.append(keyed)
        self._stored.append(stored)
        numbers = append(append(append(self._numbers, offset), key), key_end)
        self._numbers = append(append(numbers, payload), payload_end)

    def extend(self, others: Records, first: i64, end: i64) -> None:
        """Append those of the others from the place `first` on, up to `end`."""
        self._keyed += others._keyed[first:end]
        self._stored += others._stored[first:end]
        self._numbers = extend(self._numbers, others._numbers[_NUMBERS * first : _NUMBERS * end])

    def part(self, first: int, end: int) -> Records:
        """Return those from the place `first` on, up to `end`."""
        found = Records()
        found.extend(self, first, end)
        return found

    def let_go(self) -> None:
        """Keep nothing but the offsets: the bytes are the larger part of what a batch has in memory."""
        self._keyed, self._stored = [], []
