"""Stored counts of items, summed over shards and slices.

All buckets of the horizon are read, some thousand at a time. So reading is for single requests, not for each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

from monitor.analysis import REVIEW_DAYS, ItemSums, ReviewRanking, StoredItems, TriageEntry, rank_for_review
from monitor.config import OTHER_CATEGORY, ExperimentSettings
from monitor.engine import OTHER_ITEMS_HASH
from monitor.metrics import BAD_ANSWER_DAYS, SHOWN_FIELD, DayRecord, ItemLayout, day_record_width
from monitor.state.record_reader import decode_records, read_records
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore, read_newest_response_ms
from monitor.state.store_shard import StoreShard

_KEYS_PER_PIPELINE = 2_000
OTHER_ITEMS_NAME = "(not in the catalogue)"


class ItemReader:
    """Reads the counts of an experiment's items. All methods raise `StoreUnavailable`."""

    def __init__(self, store: ShardedStore, settings: ExperimentSettings, number: int) -> None:
        self._store = store
        self._settings = settings
        self._number = number
        self._layout = ItemLayout.for_experiment(settings)

    def read_newest_response_ms(self) -> int | None:
        """Return the time of the newest response; None before the first response."""
        variants = range(len(self._settings.variants))
        return read_newest_response_ms(self._store, self._number, variants)

    def read_sums(self, newest_ms: int) -> dict[str, dict[bytes, ItemSums]]:
        """Return variant → item's hash → sums over the slices of the horizon that ends at `newest_ms`."""
        oldest, newest = self._layout.oldest_slice(newest_ms), self._layout.slice_of(newest_ms)
        sums: dict[str, dict[bytes, ItemSums]] = {}
        for variant, name in enumerate(sorted(self._settings.variants)):
            counts: dict[bytes, Counter[bytes]] = {}
            for shard in self._store:
                keys = shard.keys
                slices = self._read_members(shard, keys.item_index(self._number, variant), oldest, newest)
                hash_keys = (
                    keys.item_counts(self._number, variant, slice_number, bucket)
                    for slice_number in slices
                    for bucket in range(self._layout.bucket_count)
                )
                for field, count in read_nonzero_fields(shard, hash_keys):
                    counts.setdefault(field[:-1], Counter())[field[-1:]] += int(count)
            sums[name] = {
                item: ItemSums.of(item_counts, self._layout)
                for item, item_counts in counts.items()
                if any(item_counts.values())
            }
        return sums

    def _read_bad_item_answers(self, today: int) -> dict[bytes, Counter[int]]:
        """Return item's hash → day → bad answers."""
        bad_answers: dict[bytes, Counter[int]] = {}
        for day, field, count in self._read_bad_answers(today, self._layout.bucket_count):
            if not field[-1:].isdigit():
                bad_answers.setdefault(field[:-1], Counter())[day] += count
        return bad_answers

    def _read_bad_category_answers(self, today: int) -> dict[str, Counter[int]]:
        """Return category → day → bad answers."""
        bad_answers: dict[str, Counter[int]] = {}
        names = [*sorted(self._settings.categories), OTHER_CATEGORY]
        # Categories are in the first bucket.
        for day, field, count in self._read_bad_answers(today, 1):
            if field[-1:].isdigit():
                bad_answers.setdefault(names[int(field)], Counter())[day] += count
        return bad_answers

    def _read_bad_answers(self, today: int, bucket_count: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield (day, field, bad answers) of `today` and of the days that are compared with `today`."""
        for shard in self._store:
            keys, first_day = shard.keys, today - BAD_ANSWER_DAYS
            for day in self._read_members(shard, keys.bad_answer_index(self._number), first_day, today):
                hash_keys = (keys.bad_answers(self._number, day, bucket) for bucket in range(bucket_count))
                yield from ((day, field, int(count)) for field, count in read_nonzero_fields(shard, hash_keys))

    def _read_category_responses(self, today: int) -> dict[str, int]:
        """Return category → responses of `today` and the days before, `REVIEW_DAYS` days in all."""
        names = [*sorted(self._settings.categories), OTHER_CATEGORY]
        days = range(today - REVIEW_DAYS + 1, today + 1)
        responses = [0] * len(names)
        for shard in self._store:
            record_keys = [
                shard.keys.traffic_day(self._number, variant, day)
                for variant in range(len(self._settings.variants))
                for day in days
            ]
            width = day_record_width(len(self._settings.categories))
            for record in decode_records(record_keys, read_records(shard, record_keys), width):
                counts = DayRecord(record).categories.tolist()
                responses = [total + count for total, count in zip(responses, counts, strict=False)]
        return dict(zip(names, responses, strict=False))

    def _read_shown_items(self, items: Collection[bytes], today: int) -> dict[bytes, int]:
        """Return item's hash → responses that showed the item within `REVIEW_DAYS` days up to `today`.

        The store has sums of slices. Of a slice that begins before these days, the part of its days counts, rounded.
        """
        layout, first_day = self._layout, today - REVIEW_DAYS + 1
        buckets = sorted({layout.bucket_of(item) for item in items})
        shares: dict[int, float] = {}
        for slice_number in range(layout.slice_of_day(first_day), layout.slice_of_day(today) + 1):
            first, last = slice_number * layout.days_per_slice, (slice_number + 1) * layout.days_per_slice - 1
            last = min(last, today)
            shares[slice_number] = (last - max(first, first_day) + 1) / (last - first + 1)
        shown = dict.fromkeys(items, 0.0)
        for slice_number, share in shares.items():
            for shard in self._store:
                hash_keys = (
                    shard.keys.item_counts(self._number, variant, slice_number, bucket)
                    for variant in range(len(self._settings.variants))
                    for bucket in buckets
                )
                for field, count in read_nonzero_fields(shard, hash_keys):
                    if field[-1:] == SHOWN_FIELD and field[:-1] in shown:
                        shown[field[:-1]] += share * int(count)
        return {item: round(count) for item, count in shown.items()}

    def read_names(self, items: Iterable[bytes], newest_ms: int) -> Mapping[bytes, str]:
        """Return item's hash → item's id, or the hash as text for an item without a stored id.

        The hash of all items outside the catalogue has the name `OTHER_ITEMS_NAME`.
        """
        item_hashes = list(dict.fromkeys(items))
        names = {item: item.hex() for item in item_hashes} | {OTHER_ITEMS_HASH: OTHER_ITEMS_NAME}
        layout = self._layout
        oldest, newest = layout.oldest_slice(newest_ms), layout.slice_of(newest_ms)
        for shard in self._store:
            for era in range(layout.era_of(oldest), layout.era_of(newest) + 1):
                for batch in _batches(iter(item_hashes)):
                    keys = [shard.keys.item_ids(self._number, era, layout.bucket_of(item)) for item in batch]
                    with translating_errors(self._store.settings):
                        pipeline = shard.client.pipeline(transaction=False)
                        for key, item in zip(keys, batch, strict=True):
                            pipeline.hget(key, item)
                        stored = pipeline.execute()
                    names |= {item: name.decode() for item, name in zip(batch, stored, strict=True) if name is not None}
        return names

    def read_items(self, grades: Sequence[float]) -> StoredItems:
        """Return the statistics of all items in the horizon; `grades` are the grades of the prior of mean grades."""
        newest_ms = self.read_newest_response_ms()
        empty: dict[str, dict[bytes, ItemSums]] = {variant: {} for variant in sorted(self._settings.variants)}
        sums_by_variant = empty if newest_ms is None else self.read_sums(newest_ms)
        names = self.read_names((item for sums in sums_by_variant.values() for item in sums), newest_ms or 0)
        item_settings = self._settings.items
        return StoredItems(
            since_ms=None if newest_ms is None else self._layout.slice_start_ms(self._layout.oldest_slice(newest_ms)),
            by_variant={
                variant: {names[item]: item_sums for item, item_sums in sums.items()}
                for variant, sums in sums_by_variant.items()
            },
            # If only a sample of the catalogue is counted, the number of displayed items is unknown.
            catalogue=(
                item_settings.catalogue if item_settings is not None and item_settings.sample_one_in == 1 else None
            )
            or frozenset(),
            prior_grades=grades,
        )

    def read_review_ranking(
        self, by: Literal["item", "category"], ranking: ReviewRanking = "share"
    ) -> tuple[TriageEntry, ...]:
        """Return the items or categories that need review, highest priority first, as of the newest response's day."""
        newest_ms = self.read_newest_response_ms()
        if newest_ms is None:
            return ()
        today = self._layout.calendar.day_number(newest_ms)
        if by == "category":
            bad_category_answers = self._read_bad_category_answers(today)
            return rank_for_review(bad_category_answers, self._read_category_responses(today), today, ranking=ranking)
        bad_answers = self._read_bad_item_answers(today)
        entries = rank_for_review(
            {item.hex(): days for item, days in bad_answers.items()},
            {item.hex(): count for item, count in self._read_shown_items(bad_answers, today).items()},
            today,
            ranking=ranking,
        )
        names = self.read_names((bytes.fromhex(entry.name) for entry in entries), newest_ms)
        named_entries = [replace(entry, name=names[bytes.fromhex(entry.name)]) for entry in entries]
        return tuple(sorted(named_entries, key=lambda entry: entry.sort_key))

    def _read_members(self, shard: StoreShard, index_key: bytes, first: int, last: int) -> Sequence[int]:
        """Return the members of an index from `first` to `last`, in rising order."""
        with translating_errors(self._store.settings):
            members = map(int, shard.client.zrange(index_key, 0, -1))
            return sorted(member for member in members if first <= member <= last)


def read_nonzero_fields(shard: StoreShard, keys: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (field, number) for each field with a number other than 0 in some hashes."""
    for batch in _batches(iter(keys)):
        with translating_errors(shard.settings):
            pipeline = shard.client.pipeline(transaction=False)
            for key in batch:
                pipeline.hgetall(key)
            replies = pipeline.execute()
        for fields in replies:
            yield from ((field, count) for field, count in fields.items() if count != b"0")


def _batches(items: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(items, _KEYS_PER_PIPELINE)):
        yield batch
