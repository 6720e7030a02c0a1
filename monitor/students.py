"""What a student amounts to: sums over the responses that the student was shown, by variant and by day.

Sums vectors are [responses, rated responses, Σ metric 1 …, undefined of metric 1 …, Σ of what is watched 1 …, responses
without that 1 …]: 2 + 2·m + 2·w integers, the metrics in fixed point over rated, defined responses, what guardrails
watch besides in whole units over all responses. Blocks of them stand side by side in one array, which is what this
module is about: it is compiled (deploy/native.py), and walks them as a C program would.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i32_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from monitor.attribution import BEFORE, DAY_MS, UNKNOWN
from monitor.varints import Reader, write_signed

NEVER: Final = 1 << 61
"""In the place of the time of the first response, for students who have only been seen before the experiment."""
_TOTAL: Final = -1
"""In the place of a day: the block is over all days."""
_HEAD: Final = 2
"""A block begins with its variant and its day."""
_NOTHING: Final[i64] = 0
_VERSION_BYTES: Final = 4
_CATEGORY_SHIFT: Final = 8


@final
class Student:
    """One student of one experiment as the store keeps it."""

    __slots__ = ("_blocks", "_width", "first", "first_category", "first_ms", "first_variant", "last", "name", "version")

    first_ms: i64
    first_variant: i64
    first_category: i64
    """When and where the student was first shown a response, and of what category (`UNKNOWN` unless categories are
    declared); ties go to the smaller variant, then to the smaller category."""
    version: int
    """See `monitor.store.rows`."""

    def __init__(
        self, first_ms: i64, first_variant: i64, width: i64, version: int = 0, first_category: i64 = UNKNOWN
    ) -> None:
        """Begin without any response, with sums vectors of `width`."""
        self.first_ms = first_ms
        self.first_variant = first_variant
        self.first_category = first_category
        self.version = version
        self.name = b""
        """The student's hash; not in the row."""
        self.first: i64 = -1
        self.last: i64 = -1
        """The places of what the batch that is being applied says first and last about the student; not stored."""
        self._width: i64 = width
        self._blocks: vec[i64] = vec[i64]()
        """Totals by variant, then the days that are kept apart and have responses, by variant and day."""

    def expose(self, timestamp_ms: i64, variant: i64, category: i64, kept_days: i64) -> None:
        """Note that the student was shown a response; an earlier one moves the days kept, which can only shrink."""
        same = timestamp_ms == self.first_ms
        later = variant > self.first_variant or (variant == self.first_variant and category >= self.first_category)
        if timestamp_ms > self.first_ms or (same and later):
            return
        moved = timestamp_ms // DAY_MS < self.first_ms // DAY_MS
        self.first_ms = timestamp_ms
        self.first_variant = variant
        self.first_category = category
        if moved:
            self._keep_before(timestamp_ms // DAY_MS + kept_days)

    def add(
        self, timestamp_ms: i64, variant: i64, category: i64, numbers: vec[i64], begin: i64, kept_days: i64
    ) -> None:
        """Add a response's difference to the student's sums, and to its day's if that is one of those kept apart.

        Among the numbers, the difference begins at `begin`. Whatever it is of was shown: see `expose`. What was
        `BEFORE` the experiment is no exposure.
        """
        if variant == BEFORE:
            self._accumulate(BEFORE, _TOTAL, numbers, begin)
            return
        self.expose(timestamp_ms, variant, category, kept_days)
        self._accumulate(variant, _TOTAL, numbers, begin)
        day: i64 = timestamp_ms // DAY_MS
        if day < self.first_ms // DAY_MS + kept_days:
            self._accumulate(variant, day, numbers, begin)

    def variants(self) -> vec[i64]:
        """Return the variants with responses during the experiment, rising; more than one makes a crossover."""
        found = vec[i64]()
        blocks, step = self._blocks, self._width + _HEAD
        at: i64 = 0
        while at < len(blocks) and blocks[at + 1] == _TOTAL:
            if blocks[at] != BEFORE:
                found = append(found, blocks[at])
            at += step
        return found

    def only_variant(self) -> i64:
        """Return the one variant with responses during the experiment, -1 if there are none or more."""
        only: i64 = -1
        blocks, step = self._blocks, self._width + _HEAD
        at: i64 = 0
        while at < len(blocks) and blocks[at + 1] == _TOTAL:
            if blocks[at] != BEFORE:
                if only >= 0:
                    return -1
                only = blocks[at]
            at += step
        return only

    def totals(self, variant: i64, sums: vec[i64]) -> None:
        """Put the sums over all responses of a variant into `sums`."""
        blocks, at = self._blocks, self._find(variant, _TOTAL)
        known = at < len(blocks) and blocks[at] == variant and blocks[at + 1] == _TOTAL
        width = self._width
        place: i64 = 0
        while place < width:
            # A conditional expression would make an object of each number: nowhere in here.
            if known:
                sums[place] = blocks[at + _HEAD + place]
            else:
                sums[place] = 0
            place += 1

    def days(self, variant: i64, first: i64, end: i64, sums: vec[i64]) -> None:
        """Put the sums of a variant over days since first exposure, from `first` until before `end`, into `sums`."""
        day: i64 = self.first_ms // DAY_MS
        first_day, end_day = day + first, day + end
        blocks, width = self._blocks, self._width
        at: i64 = 0
        while at < width:
            sums[at] = 0
            at += 1
        at = 0
        while at < len(blocks):
            if blocks[at] == variant and first_day <= blocks[at + 1] < end_day:
                place: i64 = 0
                while place < width:
                    sums[place] += blocks[at + _HEAD + place]
                    place += 1
            at += width + _HEAD

    def _accumulate(self, variant: i64, day: i64, numbers: vec[i64], begin: i64) -> None:
        blocks, width = self._blocks, self._width
        at = self._find(variant, day)
        if at == len(blocks) or blocks[at] != variant or blocks[at + 1] != day:
            self._insert(at, variant, day)
            blocks = self._blocks
        place: i64 = 0
        left = False
        while place < width:
            now = blocks[at + _HEAD + place] + numbers[begin + place]
            blocks[at + _HEAD + place] = now
            left = left or now != 0
            place += 1
        # Without a response there can be more only while shards are brought in line, in whatever order.
        if not left:
            self._remove(at)

    def _find(self, variant: i64, day: i64) -> i64:
        """Return where the block is, or is to be: totals before days, then by variant and day."""
        blocks, step = self._blocks, self._width + _HEAD
        at: i64 = 0
        while at < len(blocks):
            late = blocks[at + 1] != _TOTAL
            if late == (day != _TOTAL):
                if blocks[at] > variant or (blocks[at] == variant and blocks[at + 1] >= day):
                    break
            elif late:
                break
            at += step
        return at

    def _insert(self, place: i64, variant: i64, day: i64) -> None:
        old = self._blocks
        step = self._width + _HEAD
        new = vec[i64]([_NOTHING] * (len(old) + step))
        at: i64 = 0
        while at < place:
            new[at] = old[at]
            at += 1
        new[place] = variant
        new[place + 1] = day
        while at < len(old):
            new[at + step] = old[at]
            at += 1
        self._blocks = new

    def _remove(self, place: i64) -> None:
        old = self._blocks
        new = vec[i64](capacity=len(old))
        at: i64 = 0
        while at < len(old):
            if not place <= at < place + self._width + _HEAD:
                new = append(new, old[at])
            at += 1
        self._blocks = new

    def _keep_before(self, end_day: i64) -> None:
        step = self._width + _HEAD
        at: i64 = 0
        while at < len(self._blocks):
            if self._blocks[at + 1] >= end_day:
                self._remove(at)
            else:
                at += step

    def encode(self) -> bytes:
        """Return the bytes of the student's row: see `read`."""
        writer = BytesWriter()
        write_i32_be(writer, i32(self.version))
        write_signed(writer, self.first_ms)
        write_signed(writer, (self.first_category - UNKNOWN) << _CATEGORY_SHIFT | self.first_variant)
        first_day: i64 = self.first_ms // DAY_MS
        blocks, step = self._blocks, self._width + _HEAD
        at: i64 = 0
        while at < len(blocks):
            write_signed(writer, blocks[at])
            day = blocks[at + 1]
            if day == _TOTAL:
                write_signed(writer, 0)
            else:
                write_signed(writer, day - first_day + 1)
            end: i64 = step
            while end > _HEAD + 1 and blocks[at + end - 1] == 0:
                end -= 1
            write_signed(writer, end - _HEAD)
            place: i64 = _HEAD
            while place < end:
                write_signed(writer, blocks[at + place])
                place += 1
            at += step
        return writer.getvalue()

    def read(self, stored: bytes) -> None:
        """Become what `encode` wrote; raises ValueError for anything else.

        Four bytes of version, then signed varints (`monitor.varints`): when first shown a response; its category + 1
        above eight bits of its variant; of each block variant, day after the first + 1 (0: all days), how many of its
        sums follow (the others are 0), and those.
        """
        reader = Reader(stored, _VERSION_BYTES)
        first_ms, shown = reader.signed(), reader.signed()
        self.first_ms = first_ms
        self.first_variant = shown & (1 << _CATEGORY_SHIFT) - 1
        self.first_category = (shown >> _CATEGORY_SHIFT) + UNKNOWN
        self.version = int.from_bytes(stored[:_VERSION_BYTES])
        width, first_day = self._width, first_ms // DAY_MS
        blocks = vec[i64]()
        while reader.left():
            blocks = append(blocks, reader.signed())
            day = reader.signed()
            blocks = append(blocks, _TOTAL) if day == 0 else append(blocks, first_day + day - 1)
            held = reader.signed()
            if not 0 <= held <= width:
                raise ValueError(f"{held} sums, expected at most {width}")
            place: i64 = 0
            while place < held:
                blocks = append(blocks, reader.signed())
                place += 1
            while place < width:
                blocks = append(blocks, _NOTHING)
                place += 1
        self._blocks = blocks


@final
class Only:
    """What a student of one variant counts for."""

    __slots__ = ("first_category", "first_ms", "first_variant", "totals", "variant", "window")

    first_ms: i64
    first_variant: i64
    first_category: i64
    variant: i64

    def __init__(self, width: i64) -> None:
        self.first_ms = 0
        self.first_variant = 0
        self.first_category = 0
        self.variant = 0
        self.totals = vec[i64]([0] * width)
        """Sums over all responses."""
        self.window = vec[i64]([0] * width)
        """The same over the days after the first exposure that are compared."""

    def look(self, student: Student, variant: i64, days: i64) -> None:
        """Note what there is of a student."""
        self.first_ms = student.first_ms
        self.first_variant = student.first_variant
        self.first_category = student.first_category
        self.variant = variant
        student.totals(variant, self.totals)
        student.days(variant, 0, days, self.window)

    def begins_as(self, student: Student) -> bool:
        """Return whether the student's first response is the one that was noted."""
        return (
            self.first_ms == student.first_ms
            and self.first_variant == student.first_variant
            and self.first_category == student.first_category
        )

    def differs_in_window(self, other: Only) -> bool:
        """Return whether the sums over those days are not the same."""
        place: i64 = 0
        while place < len(self.window):
            if self.window[place] != other.window[place]:
                return True
            place += 1
        return False
