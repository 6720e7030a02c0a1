"""Sums of the primary metric and responses by day of the experiment, from the time buckets of one decay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.analysis import DayReading, VariantDaySums
from monitor.clock import HOUR_MS
from monitor.config import DecaySpec, ExperimentSettings
from monitor.metrics import (
    BUCKETS_PER_CHUNK,
    IntArray,
    RecordLayout,
    ResponseRecord,
    bucket_midpoints_ms,
    chunk_length_ms,
)
from monitor.state.hourly_responses import read_variants_by_hour
from monitor.state.record_reader import add_chunk, read_records
from monitor.state.sharded_store import ShardedStore
from monitor.stats import SampleMeanStatistic

MAX_DAYS: Final = 60
_MAX_CHUNKS: Final = 128
"""Chunks that are read per variant: 8 MB with six metrics."""
_CHUNKS_PER_READ: Final = 64
_WIDEST_PRECISE_BUCKET_MS: Final = HOUR_MS
_WIDEST_BUCKET_MS: Final = 3 * HOUR_MS
"""With wider time buckets, the sums of a day would contain too much of the days around."""


@dataclass(frozen=True, slots=True)
class DaySumsReader:
    """Reads the days of an experiment.

    The time buckets are those of the longest decay whose buckets are at most an hour long: few and precise. A bucket
    counts on the day of its middle, so up to half a bucket at midnight may count on the neighbouring day. With a
    half-life of an hour or a day and days of UTC, buckets end at midnight, and the sums are exact.
    """

    store: ShardedStore
    experiment: ExperimentSettings
    number: int

    def read_days(
        self, newest_ms: int, until_ms: int, first_response_ms: int | None, *, is_past: bool, is_ended: bool
    ) -> DayReading:
        """Return the sums of the last `MAX_DAYS` days until `until_ms`, or of fewer days if all half-lives are short.

        `newest_ms` is the time of the experiment's newest response: what is too far behind it has been deleted.
        `first_response_ms` is that of the first response, None if unknown. If `is_past`, later responses are in the
        store, and only time buckets and hours that are over at `until_ms` count. If `is_ended`, no response follows.
        There are no days without a response, and none if all time buckets are too long. Raises `StoreUnavailable` and
        `UnusableStore`.
        """
        decay, calendar = _choose_decay(self.experiment.decay), self.experiment.calendar
        if decay is None:
            return DayReading({}, {}, until_ms)
        span_ms, last_day = chunk_length_ms(decay), calendar.day_number(until_ms - (is_past or is_ended))
        oldest_ms = max(
            newest_ms - self.experiment.retention_ms,
            (until_ms // span_ms + 1 - _MAX_CHUNKS) * span_ms,
            calendar.start_ms(last_day - MAX_DAYS + 1),
        )
        sums = self._read_sums(
            decay, range(oldest_ms // span_ms, until_ms // span_ms + 1), until_ms if is_past else None
        )
        complete_days = [day for day in sums if calendar.start_ms(day) >= oldest_ms]
        if not complete_days:
            return DayReading({}, {}, until_ms)
        first_day = min(complete_days)
        last_day = max(last_day, *complete_days)
        names = sorted(self.experiment.variants)
        without_response = dict.fromkeys(names, VariantDaySums(0, SampleMeanStatistic()))
        first_hour = -(-calendar.start_ms(first_day) // HOUR_MS)
        hours = range(first_hour, until_ms // HOUR_MS + (not is_past))
        return DayReading(
            {day: sums.get(day, without_response) for day in range(first_day, last_day + 1)},
            dict(zip(names, read_variants_by_hour(self.store, self.number, len(names), hours), strict=True)),
            until_ms,
            is_ended=is_ended,
            is_cut=first_response_ms is not None and calendar.day_number(first_response_ms) < first_day,
        )

    def _read_sums(self, decay: DecaySpec, chunks: range, until_ms: int | None) -> dict[int, dict[str, VariantDaySums]]:
        """Return day → variant → sums, of days with responses; of buckets that end until `until_ms` if given."""
        layout, span_ms = RecordLayout.for_experiment(self.experiment), chunk_length_ms(decay)
        totals: dict[int, IntArray] = {}
        for chunk, records in self._read_chunks(decay, chunks, layout):
            middles_ms = bucket_midpoints_ms([chunk], span_ms)
            is_counted = ResponseRecord(records).responses.any(axis=0)
            if until_ms is not None:
                is_counted &= middles_ms + span_ms / BUCKETS_PER_CHUNK / 2 <= until_ms
            days = np.array([self.experiment.calendar.day_number(int(middle_ms)) for middle_ms in middles_ms])
            for day in np.unique(days[is_counted]).tolist():
                totals[day] = totals.get(day, 0) + records[:, is_counted & (days == day)].sum(axis=1)
        names = sorted(self.experiment.variants)
        return {
            day: {
                name: self._sums_of(ResponseRecord(record), layout) for name, record in zip(names, total, strict=True)
            }
            for day, total in totals.items()
        }

    def _read_chunks(self, decay: DecaySpec, chunks: range, layout: RecordLayout) -> Iterator[tuple[int, IntArray]]:
        """Yield the stored chunks of a range with their records: variants × buckets × width."""
        variants = range(len(self.experiment.variants))
        for start in range(0, len(chunks), _CHUNKS_PER_READ):
            group = chunks[start : start + _CHUNKS_PER_READ]
            stored: dict[int, IntArray] = {}
            for shard in self.store:
                cells = [(chunk, variant) for chunk in group for variant in variants]
                keys = [shard.keys.bucket_chunk(self.number, variant, decay.name, chunk) for chunk, variant in cells]
                for (chunk, variant), key, content in zip(cells, keys, read_records(shard, keys), strict=True):
                    if content is not None:
                        width = BUCKETS_PER_CHUNK * layout.response_width
                        records = stored.setdefault(chunk, np.zeros((len(variants), width), dtype=np.int64))
                        add_chunk(records[variant], key, content)
            for chunk, records in stored.items():
                yield chunk, records.reshape(len(variants), BUCKETS_PER_CHUNK, layout.response_width)

    def _sums_of(self, record: ResponseRecord, layout: RecordLayout) -> VariantDaySums:
        """Return the sums of the primary metric in the population of the verdict; there, unrated responses may be 0."""
        names = [metric.name for metric in self.experiment.metrics]
        primary = record.metric_sums(layout)[names.index(self.experiment.primary)]
        responses = int(record.responses)
        is_over_all = self.experiment.population_of(self.experiment.primary) == "all"
        units = responses if is_over_all else primary.responses
        return VariantDaySums(responses, SampleMeanStatistic(units, primary.total, primary.squares))


def _choose_decay(decays: Sequence[DecaySpec]) -> DecaySpec | None:
    """Return the longest decay with precise buckets, otherwise the shortest; None if its buckets are too long."""
    by_length = sorted(decays, key=chunk_length_ms)
    precise = [decay for decay in by_length if chunk_length_ms(decay) <= _WIDEST_PRECISE_BUCKET_MS * BUCKETS_PER_CHUNK]
    usable = [decay for decay in by_length if chunk_length_ms(decay) <= _WIDEST_BUCKET_MS * BUCKETS_PER_CHUNK]
    return next(iter([*precise[-1:], *usable[:1]]), None)
