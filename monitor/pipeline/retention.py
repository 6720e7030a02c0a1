"""Retention by event time: deletion of rows that can no longer change, and of records beyond their retention."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence

from monitor.clock import HOUR_MS, Clock, wall_clock
from monitor.engine import Experiment
from monitor.metrics import BAD_ANSWER_DAYS, ItemLayout, chunk_length_ms
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import (
    ArrivalCount,
    ExpiredRange,
    StoreShard,
    arrival_field,
    compact_time_buckets,
    delete_expired,
    delete_student_rows,
    expired_arrivals,
    read_experiments_without_students,
    read_expiry_hours,
    read_newest_response_ms,
)

_ROWS_PER_SCRIPT = 4000
"""Number of rows that a run of the script deletes at least, if its hours contain so many."""
_MAX_HOURS_PER_SCRIPT = 24
"""Largest number of hours per script. All workers expire the same hours, and all but one find them empty."""
_RETENTION_INTERVAL_S = 60.0
"""Smallest time between two checks of retention. Each check reads whole indexes, and a backlog passes hours quickly."""
_MIN_SCRIPTS = 12
"""Number of scripts per call, in addition to the scripts in proportion to the applied events."""


class RetentionCleaner:
    """Deletes expired data of a shard, some at each call, so that the pipeline never waits long."""

    def __init__(
        self,
        store: StoreShard,
        experiments: Sequence[Experiment],
        *,
        feedback_topic: str | None = None,
        clock: Clock = wall_clock,
        archived: Collection[int] = (),
    ) -> None:
        """`feedback_topic` is the topic under which unmatched feedback is counted; None: arrivals are not counted.

        The students' rows of the numbers `archived` are deleted: no worker changes them any more.
        """
        self._store = store
        self._experiments = experiments
        self._feedback_topic = feedback_topic
        self._clock = clock
        self._arrival_hour = 0
        """Hour of the last deletion of counts of arriving events."""
        self._watermark_hour = 0
        self._retention_due = False
        """Whether the watermark has entered another hour since the last check of retention."""
        self._next_retention_s = 0.0
        self._student_deletions: dict[int, Iterator[int]] = {}
        """Number of an ended experiment → the deletion of its student rows, in steps."""
        self._archived: Collection[int] = archived
        self._ended_experiments: set[int] = set()
        """Numbers of the ended experiments whose expiry boundary was raised to their end."""
        self._expired_hours: list[tuple[str, int]] = []
        """(experiment number or `PENDING_FEEDBACK`, hour) of the rows to delete, in ascending order."""

    def clean(self, tracker: WatermarkTracker, event_count: int = 0, *, last: bool = False) -> None:
        """Compact long time buckets, and delete about 50 000 expired rows plus two per event of `event_count`.

        `event_count` is the number of events applied since the previous call, so that the rate of deletion follows the
        rate of events. Expired hours are listed again when the watermark enters another hour, and retention is checked
        at most once a minute. The `last` call before a shutdown deletes all expired rows.
        """
        compact_time_buckets(self._store)
        self._delete_old_arrivals()
        watermark_hour = tracker.watermark_ms() // HOUR_MS
        if watermark_hour > self._watermark_hour:
            late_before_ms = tracker.late_before_ms()
            self._expired_hours = sorted(
                (experiment, hour)
                for experiment, hour in read_expiry_hours(self._store)
                if (hour + 1) * HOUR_MS <= late_before_ms.get(experiment, 0)
            )
            self._delete_students_of_ended_experiments(tracker)
            self._watermark_hour, self._retention_due = watermark_hour, True
        if self._retention_due and (last or time.monotonic() >= self._next_retention_s):
            self._delete_past_retention(tracker.held)
            self._retention_due, self._next_retention_s = False, time.monotonic() + _RETENTION_INTERVAL_S
        if self._archived:
            for number in {*self._archived} - read_experiments_without_students(self._store):
                self._student_deletions[number] = delete_student_rows(self._store, number)
            self._archived = ()
        for number, deletion in list(self._student_deletions.items()):
            # A deletion that an outage has interrupted starts again when the watermark enters another hour.
            if next(deletion, None) is None:
                del self._student_deletions[number]
        script_count = _MIN_SCRIPTS + 2 * event_count // _ROWS_PER_SCRIPT
        while self._expired_hours and (last or script_count > 0):
            script_count -= 1
            experiment, newest_hour = self._expired_hours[-1]
            before_ms = (newest_hour + 1) * HOUR_MS
            tracker.raise_expiry_boundary(experiment, before_ms)
            hours = [
                hour for number, hour in reversed(self._expired_hours[-_MAX_HOURS_PER_SCRIPT:]) if number == experiment
            ]
            _, completed_hours = self._store.expire_rows(experiment, hours, before_ms, self._unmatched_field())
            del self._expired_hours[len(self._expired_hours) - completed_hours :]

    def _unmatched_field(self) -> tuple[int, bytes]:
        """Return the hour and the field of the counts of arriving events that count unmatched feedback."""
        if self._feedback_topic is None:
            return 0, b""
        now_ms = self._clock()
        return now_ms // HOUR_MS, arrival_field(ArrivalCount(self._feedback_topic, "unmatched"), now_ms)

    def _delete_old_arrivals(self) -> None:
        """Delete the counts of events that arrived long ago, once an hour."""
        now_ms = self._clock()
        if self._feedback_topic is not None and now_ms // HOUR_MS > self._arrival_hour:
            delete_expired(self._store, [expired_arrivals(self._store.keys, now_ms)])
            self._arrival_hour = now_ms // HOUR_MS

    def _delete_students_of_ended_experiments(self, tracker: WatermarkTracker) -> None:
        """Start to delete the student rows of ended experiments that no event can change any more."""
        late_before_ms = tracker.late_before_ms()
        ended_experiments = [
            experiment
            for experiment in self._experiments
            if experiment.ends_at_ms <= late_before_ms.get(str(experiment.number), 0)
        ]
        completed_numbers = read_experiments_without_students(self._store) if ended_experiments else ()
        for experiment in ended_experiments:
            number = experiment.number
            if number in completed_numbers or number in self._student_deletions:
                continue
            if number in self._ended_experiments:
                self._student_deletions[number] = delete_student_rows(self._store, number)
                continue
            # The expiry boundary makes all workers reject changes of the experiment. Its student rows are deleted an
            # hour of event time later: by then all shards have the boundary, and all pending commits have arrived.
            last_hour = (experiment.ends_at_ms - 1) // HOUR_MS
            tracker.raise_expiry_boundary(str(number), (last_hour + 1) * HOUR_MS)
            self._store.expire_rows(str(number), [last_hour], (last_hour + 1) * HOUR_MS)
            self._ended_experiments.add(number)

    def _delete_past_retention(self, held: Collection[str] = ()) -> None:
        """Delete time buckets, hours and days of traffic, and item counts that are beyond their retention.

        The records of the experiment numbers in `held` remain: a backfill may still change old records.
        """
        for experiment in self._experiments:
            if str(experiment.number) in held:
                continue
            newest_ms = read_newest_response_ms([self._store], experiment.number, range(len(experiment.variant_keys)))
            if newest_ms is None:
                continue
            oldest_ms = newest_ms - experiment.settings.retention_ms
            expired_ranges = [
                expired_range
                for variant in (*range(len(experiment.variant_keys)), *experiment.excluded_variants)
                for expired_range in self._expired_traffic(experiment, variant, oldest_ms)
            ]
            if experiment.counts_items:
                expired_ranges += self._expired_items(experiment, newest_ms)
            delete_expired(self._store, expired_ranges)

    def _expired_traffic(self, experiment: Experiment, variant: int, oldest_ms: int) -> Iterator[ExpiredRange]:
        """Yield the time buckets, hours and days of traffic of a variant before the oldest time to keep."""
        keys, number, settings = self._store.keys, experiment.number, experiment.settings

        def chunk_keys(decay: str) -> Callable[[int], list[bytes]]:
            return lambda chunk: [keys.bucket_chunk(number, variant, decay, chunk)]

        for decay in settings.decay:
            oldest_chunk = oldest_ms // chunk_length_ms(decay)
            yield ExpiredRange(keys.bucket_index(number, variant, decay.name), chunk_keys(decay.name), oldest_chunk)
        hours, days = keys.traffic_hour_index(number, variant), keys.traffic_day_index(number, variant)
        yield ExpiredRange(hours, lambda hour: [keys.traffic_hour(number, variant, hour)], oldest_ms // HOUR_MS)
        yield ExpiredRange(
            days,
            lambda day: [keys.traffic_day(number, variant, day)],
            settings.calendar.day_number(oldest_ms),
            settings.drift.reference_days,
        )

    def _expired_items(self, experiment: Experiment, newest_ms: int) -> Iterator[ExpiredRange]:
        """Yield the item counts beyond the item horizon that no event can change any more."""
        keys, number = self._store.keys, experiment.number
        layout = ItemLayout.for_experiment(experiment.settings)
        unchanged_before_ms = newest_ms - experiment.settings.horizon_ms
        oldest_slice = min(layout.oldest_slice(newest_ms), layout.slice_of(unchanged_before_ms))
        buckets = range(layout.bucket_count)

        def slice_keys(variant: int) -> Callable[[int], Iterator[bytes]]:
            return lambda time_slice: (keys.item_counts(number, variant, time_slice, bucket) for bucket in buckets)

        for variant in range(len(experiment.variant_keys)):
            yield ExpiredRange(keys.item_index(number, variant), slice_keys(variant), oldest_slice)
        yield ExpiredRange(
            keys.item_id_index(number),
            lambda era: (keys.item_ids(number, era, bucket) for bucket in buckets),
            layout.era_of(oldest_slice),
        )
        day_number = layout.calendar.day_number
        oldest_day = min(day_number(newest_ms) - BAD_ANSWER_DAYS, day_number(unchanged_before_ms))
        yield ExpiredRange(
            keys.bad_answer_index(number),
            lambda day: (keys.bad_answers(number, day, bucket) for bucket in buckets),
            oldest_day,
        )
