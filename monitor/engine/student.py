"""The stored row of a student: sums over the student's responses, by variant and by day.

`monitor.metrics.StudentField` defines the integers of a sums vector.
"""

from __future__ import annotations

from typing import Final, TypeAlias, final

from mypy_extensions import i64

from monitor.engine.local_days import UTC_DAYS, LocalDays
from monitor.engine.response_row import MISSING, PRE_PERIOD_VARIANT
from monitor.metrics import StudentField

NEVER_EXPOSED_MS: Final = 1 << 61
"""Time of first exposure of a student without responses during the experiment."""

SumsVector: TypeAlias = "list[int]"

ALL_DAYS: Final = -1
"""The day of a block with sums over all days."""
BLOCK_HEAD_LENGTH: Final = 2
"""Integers of a block before its sums vector: day and arm."""
VARIANT_BITS: Final = 8
VARIANT_MASK: Final = (1 << VARIANT_BITS) - 1
"""The part of a block's arm that is the variant."""
SESSION_COUNTS: Final = 2
"""Counts of `Student.count_sessions` before those of the metrics: sessions, and responses in sessions."""


@final
class Student:
    """The stored first exposure and sums of a student in an experiment."""

    __slots__ = (
        "blocks",
        "counted_state",
        "days",
        "first_category",
        "first_exposure_ms",
        "first_variant",
        "stored_id",
        "sums_width",
        "version",
    )

    first_exposure_ms: i64
    first_variant: i64
    first_category: i64
    """Time, variant and category of the first response; of simultaneous responses, the smallest variant and category.

    The category is `MISSING` without declared categories.
    """

    def __init__(
        self,
        sums_width: i64,
        days: LocalDays = UTC_DAYS,
        first_exposure_ms: i64 = NEVER_EXPOSED_MS,
        first_variant: i64 = PRE_PERIOD_VARIANT,
        first_category: i64 = MISSING,
        version: int = 0,
    ) -> None:
        """Create a student without responses; `sums_width` is the length of a sums vector."""
        self.sums_width: i64 = sums_width
        self.days = days
        """The days of the experiment; not stored in the row."""
        self.first_exposure_ms = first_exposure_ms
        self.first_variant = first_variant
        self.first_category = first_category
        self.version = version
        """Version in the store, raised by 1 with each write; 0 before the first write."""
        self.blocks: list[int] = []
        """Concatenated blocks of [day, arm, sums vector], ascending by day and arm.

        Blocks of `ALL_DAYS` come first; their arm is the variant. Other blocks are of the tracked days, the first days
        since first exposure; their arm is the variant + 256·(hash of the session + 1), without a session the variant.
        """
        self.stored_id = b""
        """The hash of the student, part of the Redis key of the row; not stored in the row."""
        self.counted_state: StudentState | None = None
        """The state that the stored sums over students include; not stored. None: not captured yet."""

    def record_exposure(self, timestamp_ms: i64, variant: i64, category: i64, tracked_days: i64) -> None:
        """Record the time, variant and category of a response shown to the student.

        An earlier first exposure shifts the tracked days, and later days are deleted.
        """
        if timestamp_ms > self.first_exposure_ms:
            return
        if timestamp_ms == self.first_exposure_ms and (variant, category) >= (self.first_variant, self.first_category):
            return
        first_day = self.days.day_number(timestamp_ms)
        if first_day < self.first_exposure_day():
            del self.blocks[self._find_block(first_day + tracked_days, 0) :]
        self.first_exposure_ms = timestamp_ms
        self.first_variant = variant
        self.first_category = category

    def add_difference(
        self,
        timestamp_ms: i64,
        variant: i64,
        category: i64,
        difference: tuple[int, ...],
        tracked_days: i64,
        session: i64 = MISSING,
    ) -> None:
        """Add the change of a response's sums vector to the sums of all days, and to the sums of a tracked day.

        Also record the exposure, unless the response is in the pre-period.
        """
        self._add_to_block(ALL_DAYS, variant, difference)
        if variant == PRE_PERIOD_VARIANT:
            return
        self.record_exposure(timestamp_ms, variant, category, tracked_days)
        day = self.days.day_number(timestamp_ms)
        if day < self.first_exposure_day() + tracked_days:
            self._add_to_block(day, variant + ((session + 1) << VARIANT_BITS), difference)

    def first_exposure_day(self) -> i64:
        """Return the day of the first exposure."""
        return self.days.day_number(self.first_exposure_ms)

    def _add_to_block(self, day: i64, arm: i64, difference: tuple[int, ...]) -> None:
        blocks = self.blocks
        block_start = self._find_block(day, arm)
        if block_start == i64(len(blocks)) or blocks[block_start] != day or blocks[block_start + 1] != arm:
            blocks[block_start:block_start] = [day, arm, *difference]
            return
        sums_start = block_start + BLOCK_HEAD_LENGTH
        for index, number in enumerate(difference):
            change: i64 = number
            if change != 0:
                total: i64 = blocks[sums_start + index]
                blocks[sums_start + index] = total + change
        if blocks[sums_start] == 0 and not any(blocks[sums_start : sums_start + self.sums_width]):
            del blocks[block_start : sums_start + self.sums_width]

    def _find_block(self, day: i64, arm: i64) -> i64:
        """Return the start of the first block with (day, arm) not smaller than the given pair."""
        blocks, block_width = self.blocks, self.sums_width + BLOCK_HEAD_LENGTH
        start: i64 = 0
        end: i64 = len(blocks)
        while start < end and (blocks[start] < day or (blocks[start] == day and blocks[start + 1] < arm)):
            start += block_width
        return start

    def variants(self) -> list[int]:
        """Return the variants of responses during the experiment, ascending; a crossover has several variants."""
        blocks, block_width = self.blocks, self.sums_width + BLOCK_HEAD_LENGTH
        variants = []
        block_start: i64 = 0
        while block_start < i64(len(blocks)) and blocks[block_start] == ALL_DAYS:
            if blocks[block_start + 1] != PRE_PERIOD_VARIANT:
                variants.append(blocks[block_start + 1])
            block_start += block_width
        return variants

    def total_sums(self, variant: i64) -> SumsVector:
        """Return the sums vector over all responses of a variant."""
        blocks, block_start = self.blocks, self._find_block(ALL_DAYS, variant)
        if block_start == i64(len(blocks)) or blocks[block_start] != ALL_DAYS or blocks[block_start + 1] != variant:
            return [0] * self.sums_width
        return blocks[block_start + BLOCK_HEAD_LENGTH : block_start + BLOCK_HEAD_LENGTH + self.sums_width]

    def window_sums(self, variant: i64, first_day: i64, end_day: i64) -> SumsVector:
        """Return the sums vector of a variant over the days `first_day` to `end_day` - 1 since first exposure."""
        blocks, width = self.blocks, self.sums_width
        exposure_day = self.first_exposure_day()
        sums: SumsVector = []
        block_start = self._find_block(exposure_day + first_day, 0)
        while block_start < i64(len(blocks)) and blocks[block_start] < exposure_day + end_day:
            if i64(blocks[block_start + 1]) & VARIANT_MASK == variant:
                sums_start = block_start + BLOCK_HEAD_LENGTH
                if not sums:
                    sums = blocks[sums_start : sums_start + width]
                else:
                    for index in range(width):
                        sums[index] += blocks[sums_start + index]
            block_start += width + BLOCK_HEAD_LENGTH
        return sums or [0] * width

    def count_active_days(self, variant: i64, window_days: i64) -> i64:
        """Return the number of days with responses of a variant in the first `window_days` since first exposure."""
        blocks, block_width = self.blocks, self.sums_width + BLOCK_HEAD_LENGTH
        exposure_day = self.first_exposure_day()
        days: i64 = 0
        last_day: i64 = ALL_DAYS
        block_start = self._find_block(exposure_day, 0)
        while block_start < i64(len(blocks)) and blocks[block_start] < exposure_day + window_days:
            if i64(blocks[block_start + 1]) & VARIANT_MASK == variant and blocks[block_start] != last_day:
                days += 1
                last_day = blocks[block_start]
            block_start += block_width
        return days

    def count_sessions(self, variant: i64, window_days: i64) -> SumsVector:
        """Return counts of the sessions of a variant in the first `window_days` since first exposure.

        The counts are: the sessions, their responses, and for each metric the sessions in which a response has a value
        above 0.
        """
        blocks, width = self.blocks, self.sums_width
        exposure_day = self.first_exposure_day()
        metric_count = (width - StudentField.TOTALS) // 2
        sums_by_session: dict[int, SumsVector] = {}
        block_start = self._find_block(exposure_day, 0)
        while block_start < i64(len(blocks)) and blocks[block_start] < exposure_day + window_days:
            arm: i64 = blocks[block_start + 1]
            if arm & VARIANT_MASK == variant and arm >> VARIANT_BITS > 0:
                sums_start = block_start + BLOCK_HEAD_LENGTH
                session_sums = blocks[sums_start : sums_start + width]
                earlier_sums = sums_by_session.get(arm)
                if earlier_sums is not None:  # The session went on after midnight.
                    for index in range(width):
                        session_sums[index] += earlier_sums[index]
                sums_by_session[arm] = session_sums
            block_start += width + BLOCK_HEAD_LENGTH
        counts = [0] * (SESSION_COUNTS + metric_count)
        for session_sums in sums_by_session.values():
            counts[0] += int(session_sums[StudentField.RESPONSES] > 0)
            counts[1] += session_sums[StudentField.RESPONSES]
            for index in range(metric_count):
                counts[SESSION_COUNTS + index] += int(session_sums[StudentField.TOTALS + index] > 0)
        return counts


@final
class StudentState:
    """A copy of a student's exposure and sums, from which `MetricAccumulator` computes contributions."""

    __slots__ = (
        "active_days",
        "age_band_sums",
        "first_category",
        "first_exposure_ms",
        "first_variant",
        "pre_period_sums",
        "session_counts",
        "single_variant",
        "total_sums",
        "variants",
        "window_sums",
    )

    def __init__(self, student: Student, window_days: i64) -> None:
        """Copy a student; `window_days` is the length of the exposure window: the compared days after exposure."""
        self.first_exposure_ms: i64 = student.first_exposure_ms
        self.first_variant: i64 = student.first_variant
        self.first_category: i64 = student.first_category
        self.variants = student.variants()
        """All variants of responses during the experiment, ascending."""
        self.single_variant: i64 = self.variants[0] if len(self.variants) == 1 else -1
        """The variant of all responses during the experiment; -1 without responses, and for a crossover."""
        self.total_sums = student.total_sums(self.single_variant) if self.single_variant >= 0 else _NO_SUMS
        """Sums over all responses of the single variant; [] without a single variant, as in all sums below."""
        self.window_sums = (
            student.window_sums(self.single_variant, 0, window_days) if self.single_variant >= 0 else _NO_SUMS
        )
        """Sums over the exposure window."""
        self.active_days: i64 = (
            student.count_active_days(self.single_variant, window_days) if self.single_variant >= 0 else 0
        )
        """Days of the exposure window with responses."""
        self.session_counts: SumsVector = _NO_SUMS
        """Counts of sessions in the exposure window, if a metric is per session; set as `age_band_sums`."""
        self.age_band_sums: list[SumsVector] = _NO_AGE_BANDS
        """Sums over each age band, if the experiment tracks novelty; set by `MetricAccumulator.capture_state`."""
        self.pre_period_sums: SumsVector = _NO_SUMS
        """Sums over the pre-period, if the experiment has one; set by `MetricAccumulator.capture_state`."""


_NO_SUMS: Final[SumsVector] = []
_NO_AGE_BANDS: Final[list[SumsVector]] = []
