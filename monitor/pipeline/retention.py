"""Forgetting by event time: rows past every horizon and buckets past retention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from monitor.clock import DAY_MS, HOUR_MS
from monitor.engine import Experiment
from monitor.metrics import BAD_DAYS, ItemLayout, bucket_span_ms
from monitor.pipeline.watermark import Progress
from monitor.state import (
    ExpiredRange,
    RedisStore,
    closed_experiments,
    drop_past,
    drop_students,
    newest_response_ms,
    noted_hours,
    sum_up,
)

_ROWS = 4000
"""That a script takes at least, where its hours have so many, up to the end of what one commit has noted."""
_HOURS = 24
"""That a script sees to at most: several workers sweep the same ones, and all but one of them find nothing there."""
_PAST_S = 60.0
"""At least, between two looks for what is past retention: each reads the indexes as a whole, and a backlog enters hours
all the time."""
_SCRIPTS = 12
"""At once, besides those for what has come."""


class Sweeper:
    """Deletes what no event can change any more, a little at a time."""

    def __init__(self, store: RedisStore, experiments: Sequence[Experiment]) -> None:
        self._store = store
        self._experiments = experiments
        self._hour = 0
        self._has_past = False
        """Whether something may have come to be past retention."""
        self._past_at = 0.0
        self._closing: dict[int, Iterator[int]] = {}
        """Experiments that are over → the deletion of their students."""
        self._over: set[int] = set()
        """Experiments whose boundary was moved to their end."""
        self._due: list[tuple[str, int]] = []

    def sweep(self, progress: Progress, events: int = 0, *, last: bool = False) -> None:
        """Sum up what has become long, and delete some fifty thousand rows.

        Besides, twice as many go as events were applied here since the last time.

        So it keeps up with what comes, however fast that is read. Look for new work whenever the watermark enters
        another hour; for what is past retention once a minute at most. The `last` time, all that is due goes.
        """
        sum_up(self._store)
        hour = progress.watermark_ms() // HOUR_MS
        if hour > self._hour:
            late = progress.late_before()
            self._due = sorted(
                (experiment, noted)
                for experiment, noted in noted_hours(self._store)
                if (noted + 1) * HOUR_MS <= late.get(experiment, 0)
            )
            self._close(progress)
            self._hour, self._has_past = hour, True
        if self._has_past and (last or time.monotonic() >= self._past_at):
            self._drop_past()
            self._has_past, self._past_at = False, time.monotonic() + _PAST_S
        for number, deletion in list(self._closing.items()):
            # One that an outage has interrupted begins again in another hour.
            if next(deletion, None) is None:
                del self._closing[number]
        scripts = _SCRIPTS + 2 * events // _ROWS
        while self._due and (last or scripts > 0):
            scripts -= 1
            experiment, newest = self._due[-1]
            before_ms = (newest + 1) * HOUR_MS
            progress.swept(experiment, before_ms)
            hours = [noted for each, noted in reversed(self._due[-_HOURS:]) if each == experiment]
            _, done = self._store.sweep(experiment, hours, before_ms)
            del self._due[len(self._due) - done :]

    def _close(self, progress: Progress) -> None:
        """Begin to forget the students of experiments that are over and can no longer change."""
        late = progress.late_before()
        over = [each for each in self._experiments if each.ends_ms <= late.get(str(each.number), 0)]
        closed = closed_experiments(self._store) if over else ()
        for each in over:
            if each.number in closed or each.number in self._closing:
                continue
            if each.number in self._over:
                self._closing[each.number] = drop_students(self._store, each.number)
                continue
            # The sweep's boundary tells every worker that nothing of it may be touched any more. Students go an hour of
            # event time later: by then it was moved on every shard, and what was on the way has arrived.
            hour = (each.ends_ms - 1) // HOUR_MS
            progress.swept(str(each.number), (hour + 1) * HOUR_MS)
            self._store.sweep(str(each.number), [hour], (hour + 1) * HOUR_MS)
            self._over.add(each.number)

    def _drop_past(self) -> None:
        """Delete what retention does not keep."""
        for experiment in self._experiments:
            newest_ms = newest_response_ms([self._store], experiment.number, range(len(experiment.arms)))
            if newest_ms is None:
                continue
            oldest_ms = newest_ms - experiment.settings.retention_ms
            pasts = [
                past for variant in range(len(experiment.arms)) for past in self._times(experiment, variant, oldest_ms)
            ]
            if experiment.counts_items:
                pasts += self._items(experiment, newest_ms)
            drop_past(self._store, pasts)

    def _times(self, experiment: Experiment, variant: int, oldest_ms: int) -> Iterator[ExpiredRange]:
        keys, number, settings = self._store.keys, experiment.number, experiment.settings

        def chunks(decay: str) -> Callable[[int], list[bytes]]:
            return lambda chunk: [keys.chunk(number, variant, decay, chunk)]

        for decay in settings.decay:
            oldest = oldest_ms // bucket_span_ms(decay)
            yield ExpiredRange(keys.chunks(number, variant, decay.name), chunks(decay.name), oldest)
        hours, days = keys.traffic_hours(number, variant), keys.days(number, variant)
        yield ExpiredRange(hours, lambda hour: [keys.traffic_hour(number, variant, hour)], oldest_ms // HOUR_MS)
        yield ExpiredRange(days, lambda day: [keys.day(number, variant, day)], oldest_ms // DAY_MS, settings.drift.days)

    def _items(self, experiment: Experiment, newest_ms: int) -> Iterator[ExpiredRange]:
        """Yield the counts of items that are behind their horizon, once they can no longer change."""
        keys, number = self._store.keys, experiment.number
        layout, settled_ms = ItemLayout.of(experiment.settings), newest_ms - experiment.settings.horizon_ms
        oldest = min(layout.oldest(newest_ms), layout.slice_of(settled_ms))
        buckets = range(layout.buckets)

        def slices(variant: int) -> Callable[[int], Iterator[bytes]]:
            return lambda piece: (keys.items(number, variant, piece, bucket) for bucket in buckets)

        for variant in range(len(experiment.arms)):
            yield ExpiredRange(keys.item_slices(number, variant), slices(variant), oldest)
        names, era = keys.item_eras(number), layout.era_of(oldest)
        yield ExpiredRange(names, lambda era: (keys.item_names(number, era, bucket) for bucket in buckets), era)
        oldest_day = min(newest_ms // DAY_MS - BAD_DAYS, settled_ms // DAY_MS)
        yield ExpiredRange(
            keys.bad_days(number), lambda day: (keys.bad(number, day, bucket) for bucket in buckets), oldest_day
        )
