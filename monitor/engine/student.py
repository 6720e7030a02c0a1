"""The stored sums of one student over the responses that the student was shown, by variant and by day.

A sums vector is [responses, rated responses, Σ metric 1 …, undefined of metric 1 …, Σ guardrail metric 1 …, responses
without guardrail metric 1 …]: 2 + 2·m + 2·w integers. Metrics are in fixed point, over rated responses where they are
defined; guardrail metrics are in whole units, over all responses.
"""

from __future__ import annotations

from typing import Final, TypeAlias, final

from mypy_extensions import i64

from monitor.clock import DAY_MS
from monitor.engine.response_row import MISSING, PRE_PERIOD

NEVER: Final = 1 << 61
"""The time of the first response of students without one during the experiment."""

Sums: TypeAlias = "list[int]"

ALL_DAYS: Final = -1
"""In the place of a block's day: the block's sums are over all days."""
BLOCK_HEAD: Final = 2
"""A block begins with its day and its variant."""


@final
class Student:
    """One student of one experiment as the store keeps it."""

    __slots__ = ("blocks", "first_category", "first_ms", "first_variant", "name", "state", "version", "width")

    first_ms: i64
    first_variant: i64
    first_category: i64
    """Time, variant and category (`MISSING` unless categories are declared) of the first response; ties go to the
    smaller variant, then to the smaller category."""

    def __init__(
        self,
        width: i64,
        first_ms: i64 = NEVER,
        first_variant: i64 = PRE_PERIOD,
        first_category: i64 = MISSING,
        version: int = 0,
    ) -> None:
        """Create a student without responses; `width` is the length of its sums vectors."""
        self.width: i64 = width
        self.first_ms = first_ms
        self.first_variant = first_variant
        self.first_category = first_category
        self.version = version
        """Number of times that the row was written; 0 until it is stored."""
        self.blocks: list[int] = []
        """Blocks of day, variant and sums vector, one after another, ascending: first the sums of all days, then those
        of the days from the first response on that are kept."""
        self.name = b""
        """The student's hash, which is the row's key; not stored in the row."""
        self.state: StudentState | None = None
        """What was counted when the student was written last; not stored."""

    def expose(self, timestamp_ms: i64, variant: i64, category: i64, kept_days: i64) -> None:
        """Record that the student was shown a response; an earlier first response ends the kept days earlier."""
        if timestamp_ms > self.first_ms:
            return
        if timestamp_ms == self.first_ms and (variant, category) >= (self.first_variant, self.first_category):
            return
        first_day = timestamp_ms // DAY_MS
        if first_day < self.first_ms // DAY_MS:
            del self.blocks[self._find(first_day + kept_days, 0) :]
        self.first_ms = timestamp_ms
        self.first_variant = variant
        self.first_category = category

    def add(self, timestamp_ms: i64, variant: i64, category: i64, difference: tuple[int, ...], kept_days: i64) -> None:
        """Add the change of a response's sums vector to the sums of all days, and of its day if that is kept.

        The student was shown the response, unless its variant is `PRE_PERIOD`: see `expose`.
        """
        self._add(ALL_DAYS, variant, difference)
        if variant == PRE_PERIOD:
            return
        self.expose(timestamp_ms, variant, category, kept_days)
        day = timestamp_ms // DAY_MS
        if day < self.first_ms // DAY_MS + kept_days:
            self._add(day, variant, difference)

    def _add(self, day: i64, variant: i64, difference: tuple[int, ...]) -> None:
        blocks = self.blocks
        at = self._find(day, variant)
        if at == i64(len(blocks)) or blocks[at] != day or blocks[at + 1] != variant:
            blocks[at:at] = [day, variant, *difference]
            return
        begin = at + BLOCK_HEAD
        for index, number in enumerate(difference):
            change: i64 = number
            if change != 0:
                total: i64 = blocks[begin + index]
                blocks[begin + index] = total + change
        if blocks[begin] == 0 and not any(blocks[begin : begin + self.width]):
            del blocks[at : begin + self.width]

    def _find(self, day: i64, variant: i64) -> i64:
        """Return the index of the first block that is not below a day and variant."""
        blocks, step = self.blocks, self.width + BLOCK_HEAD
        at: i64 = 0
        end: i64 = len(blocks)
        while at < end and (blocks[at] < day or (blocks[at] == day and blocks[at + 1] < variant)):
            at += step
        return at

    def variants(self) -> list[int]:
        """Return the variants with responses during the experiment, ascending; more than one is a crossover."""
        blocks, step = self.blocks, self.width + BLOCK_HEAD
        variants = []
        at: i64 = 0
        while at < i64(len(blocks)) and blocks[at] == ALL_DAYS:
            if blocks[at + 1] != PRE_PERIOD:
                variants.append(blocks[at + 1])
            at += step
        return variants

    def totals(self, variant: i64) -> Sums:
        """Return the sums over all responses of a variant."""
        blocks, at = self.blocks, self._find(ALL_DAYS, variant)
        if at == i64(len(blocks)) or blocks[at] != ALL_DAYS or blocks[at + 1] != variant:
            return [0] * self.width
        return blocks[at + BLOCK_HEAD : at + BLOCK_HEAD + self.width]

    def window(self, variant: i64, first: i64, end: i64) -> Sums:
        """Return the sums of a variant over the days since first exposure from `first` until before `end`."""
        blocks, width = self.blocks, self.width
        day = self.first_ms // DAY_MS
        window: Sums = []
        at = self._find(day + first, 0)
        while at < i64(len(blocks)) and blocks[at] < day + end:
            if blocks[at + 1] == variant:
                begin = at + BLOCK_HEAD
                if not window:
                    window = blocks[begin : begin + width]
                else:
                    for index in range(width):
                        window[index] += blocks[begin + index]
            at += width + BLOCK_HEAD
        return window or [0] * width


@final
class StudentState:
    """A student's exposure and sums at one moment, as the accumulator counts them."""

    __slots__ = (
        "ages", "earlier", "first_category", "first_ms", "first_variant", "totals", "variant", "variants", "window",
    )  # fmt: skip

    def __init__(self, student: Student, window_days: i64) -> None:
        """Copy a student's state; `window_days` is the number of days after exposure that are compared."""
        self.first_ms: i64 = student.first_ms
        self.first_variant: i64 = student.first_variant
        self.first_category: i64 = student.first_category
        self.variants = student.variants()
        """All variants with responses during the experiment."""
        self.variant: i64 = self.variants[0] if len(self.variants) == 1 else -1
        """The one variant with responses during the experiment, below 0 if there is none or more than one."""
        self.totals = student.totals(self.variant) if self.variant >= 0 else _NO_SUMS
        """Sums over all responses of `variant`."""
        self.window = student.window(self.variant, 0, window_days) if self.variant >= 0 else _NO_SUMS
        """Sums over the days after exposure that are compared."""
        self.ages: list[Sums] = _NO_AGES
        """Sums over each range of days since first exposure, if novelty is watched."""
        self.earlier: Sums = _NO_SUMS
        """Sums over the responses from before the experiment, if they are compared."""


_NO_SUMS: Final[Sums] = []
_NO_AGES: Final[list[Sums]] = []
