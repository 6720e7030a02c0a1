"""Forgetting by event time: rows past every horizon and buckets past retention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from monitor.aggregates import bucket_span_ms, oldest_chunk
from monitor.attribution import DAY_MS
from monitor.ingest.experiment import HOUR_MS, Experiment
from monitor.ingest.progress import Progress
from monitor.store import RedisStore

_BATCHES_AT_ONCE = 50


class Sweeper:
    """Deletes what no event can change any more, a little at a time."""

    def __init__(self, store: RedisStore, experiments: Sequence[Experiment]) -> None:
        self._store = store
        self._experiments = experiments
        self._hour = 0
        self._closing: dict[int, Iterator[int]] = {}
        """Experiments that are over → the deletion of their students."""
        self._over: set[int] = set()
        """Experiments whose boundary was moved to their end."""
        self._due: list[tuple[str, int]] = []

    def sweep(self, progress: Progress) -> None:
        """Delete at most a few thousand rows; look for new work whenever the watermark enters another hour."""
        hour = progress.watermark_ms() // HOUR_MS
        if hour > self._hour:
            late = progress.late_before()
            self._due = sorted(
                (experiment, noted)
                for experiment, noted in self._store.hours()
                if (noted + 1) * HOUR_MS <= late.get(experiment, 0)
            )
            self._drop_past()
            self._close(progress)
            self._hour = hour
        for number, deletion in list(self._closing.items()):
            # One that an outage has interrupted begins again in another hour.
            if next(deletion, None) is None:
                del self._closing[number]
        for _ in range(_BATCHES_AT_ONCE):
            if not self._due:
                return
            experiment, noted = self._due[-1]
            before_ms = (noted + 1) * HOUR_MS
            progress.swept(experiment, before_ms)
            if self._store.sweep(experiment, noted, before_ms) < 0:
                self._due.pop()

    def _close(self, progress: Progress) -> None:
        """Begin to forget the students of experiments that are over and can no longer change."""
        late = progress.late_before()
        over = [each for each in self._experiments if each.ends_ms <= late.get(str(each.number), 0)]
        closed = self._store.closed() if over else ()
        for each in over:
            if each.number in closed or each.number in self._closing:
                continue
            if each.number in self._over:
                self._closing[each.number] = self._store.drop_students(each.number)
                continue
            # The sweep's boundary tells every worker that nothing of it may be touched any more. Students go an hour of
            # event time later: by then it was moved on every shard, and what was on the way has arrived.
            progress.swept(str(each.number), each.ends_ms)
            self._store.sweep(str(each.number), (each.ends_ms - 1) // HOUR_MS, each.ends_ms)
            self._over.add(each.number)

    def _drop_past(self) -> None:
        """Delete what retention does not keep."""
        keys, drop = self._store.keys, self._store.drop_before
        for experiment in self._experiments:
            newest_ms = self._store.newest_response_ms(experiment.number, range(len(experiment.arms)))
            if newest_ms is None:
                continue
            number, oldest_ms = experiment.number, newest_ms - experiment.settings.retention_ms
            for variant in range(len(experiment.arms)):
                for decay in experiment.settings.decay:
                    oldest = oldest_chunk(newest_ms, experiment.settings.retention_ms, bucket_span_ms(decay))
                    chunk = partial(keys.chunk, number, variant, decay.name)
                    drop(keys.chunks(number, variant, decay.name), chunk, oldest)
                hour, day = partial(keys.traffic_hour, number, variant), partial(keys.categories, number, variant)
                drop(keys.traffic_hours(number, variant), hour, oldest_ms // HOUR_MS)
                reference = experiment.settings.drift.reference
                first = reference if isinstance(reference, int) else 0
                drop(keys.category_days(number, variant), day, oldest_ms // DAY_MS, first)
