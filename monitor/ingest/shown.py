"""What the responses of a batch mean for the students who were shown them.

Numbers stand side by side in one array: a batch would have thousands of tuples instead, with an object for each number.
Compiled (deploy/native.py).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, final

from librt.strings import BytesWriter
from librt.vecs import append, extend, vec
from mypy_extensions import i64

from monitor.engine.id_hash import STUDENT_BYTES
from monitor.varints import Reader, write_signed, write_unsigned

EXPERIMENT: Final[i64] = 0
MS: Final[i64] = 1
VARIANT: Final[i64] = 2
CATEGORY: Final[i64] = 3
MARK: Final[i64] = 4
SUMS: Final[i64] = 5
"""Places among the numbers of a response: those of its experiment, when it was shown, its variant, its category, the
mark of its row (`monitor.store.rows`), and from there on the difference of its student's sums."""


@final
class Shown:
    """Responses that were shown to the students of one shard.

    One without a difference does not stand (another one under its id does), but has been seen.
    """

    __slots__ = ("_blank", "ends", "names", "numbers")

    def __init__(self) -> None:
        """Begin with none."""
        self.names: list[bytes] = []
        """Of each, the student."""
        self.numbers: vec[i64] = vec[i64]()
        self.ends: vec[i64] = vec[i64]()
        """Of each, where its numbers end and those of the next begin."""
        self._blank = vec[i64]()
        """As many zeros as the last one has numbers."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.names)

    def begin(self, place: i64) -> i64:
        """Return where the numbers of one of them begin."""
        if place > 0:
            return self.ends[place - 1]
        return 0

    def add(
        self,
        student: bytes,
        experiment: i64,
        timestamp_ms: i64,
        variant: i64,
        category: i64,
        mark: i64,
        now: tuple[int, ...],
        was: tuple[int, ...],
    ) -> None:
        """Append one that amounts to the sums `now` instead of `was`; of these, an empty one is nothing."""
        place, width = i64(0), i64(max(len(now), len(was)))
        if len(self._blank) != SUMS + width:
            self._blank = vec[i64]([0] * (SUMS + width))
        begin: i64 = len(self.numbers)
        numbers = extend(self.numbers, self._blank)
        numbers[begin + EXPERIMENT] = experiment
        numbers[begin + MS] = timestamp_ms
        numbers[begin + VARIANT] = variant
        numbers[begin + CATEGORY] = category
        numbers[begin + MARK] = mark
        begin += SUMS
        if now:
            while place < width:
                numbers[begin + place] = i64(now[place])
                place += 1
        if was:
            place = 0
            while place < width:
                numbers[begin + place] -= i64(was[place])
                place += 1
        self.numbers = numbers
        self.names.append(student)
        self.ends = append(self.ends, begin + width)

    def _add_from(self, other: Shown, place: i64, sign: i64) -> None:
        """Append one of the others, its difference times `sign`."""
        at, end = other.begin(place), other.ends[place]
        sums = at + SUMS
        while at < end:
            number = other.numbers[at]
            if at >= sums:
                number *= sign
            self.numbers = append(self.numbers, number)
            at += 1
        self.names.append(other.names[place])
        self.ends = append(self.ends, i64(len(self.numbers)))

    def experiments(self) -> set[int]:
        """Return the numbers of the experiments of all."""
        found: set[int] = set()
        last: i64 = -1
        for place in range(len(self.names)):
            number = self.numbers[self.begin(place) + EXPERIMENT]
            if number != last:
                last = number
                found.add(number)
        return found

    def without(self, experiments: Collection[int]) -> Shown:
        """Return those that are of other experiments."""
        if not experiments:
            return self
        left = Shown()
        for place in range(len(self.names)):
            if self.numbers[self.begin(place) + EXPERIMENT] not in experiments:
                left._add_from(self, place, 1)
        return left

    def undone(self) -> Shown:
        """Return what takes their differences back; that students were shown something stays."""
        left = Shown()
        for place in range(len(self.names)):
            if self.ends[place] > self.begin(place) + SUMS:
                left._add_from(self, place, -1)
        return left

    def pack_last(self, writer: BytesWriter) -> None:
        """Write the one that was added last as bytes: its student, how many numbers, and these as varints."""
        numbers, place = self.numbers, i64(len(self.names) - 1)
        at, end = self.begin(place), self.ends[place]
        writer.write(self.names[place])
        write_unsigned(writer, end - at)
        while at < end:
            write_signed(writer, numbers[at])
            at += 1

    @staticmethod
    def unpack(packed: bytes) -> Shown:
        """Return what was packed; raises ValueError for anything else."""
        shown = Shown()
        reader = Reader(packed, 0)
        numbers = shown.numbers
        while reader.left():
            shown.names.append(reader.take(STUDENT_BYTES))
            count = reader.unsigned()
            if count < SUMS:
                raise ValueError(f"{count} numbers, expected {SUMS} or more")
            while count > 0:
                numbers = append(numbers, reader.signed())
                count -= 1
            shown.ends = append(shown.ends, i64(len(numbers)))
        shown.numbers = numbers
        return shown
