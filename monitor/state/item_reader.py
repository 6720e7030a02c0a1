"""The counts of items as the store holds them, summed over the shards, slices and variants.

All buckets of the horizon are read, some thousands at a time: that is for whoever asks, not for every scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

from monitor.analysis import Entry, StoredItems, Sums, first_to_look_at
from monitor.clock import DAY_MS
from monitor.config import OTHER, ExperimentSettings
from monitor.engine import OTHERS
from monitor.metrics import BAD_DAYS, ItemLayout
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards, newest_response_ms

_AT_ONCE = 2_000
OTHERS_NAME = "(not in the catalogue)"


class ItemReader:
    """Reads the counts of one experiment's items; everything raises `StoreUnavailable`."""

    def __init__(self, store: Shards, settings: ExperimentSettings, number: int) -> None:
        self._store = store
        self._settings = settings
        self._number = number
        self._layout = ItemLayout.of(settings)

    def newest_ms(self) -> int | None:
        """Return the time of the newest response; None before the first."""
        variants = range(len(self._settings.variants))
        return newest_response_ms(self._store, self._number, variants)

    def counts(self, newest_ms: int) -> dict[str, dict[bytes, Sums]]:
        """Return variant → item's hash → what the slices of the horizon up to that time add up to."""
        oldest, newest = self._layout.oldest(newest_ms), self._layout.slice_of(newest_ms)
        found: dict[str, dict[bytes, Counter[bytes]]] = {}
        for variant, name in enumerate(sorted(self._settings.variants)):
            own: dict[bytes, Counter[bytes]] = {}
            for shard in self._store:
                keys = shard.keys
                slices = self._places(shard, keys.item_slices(self._number, variant), oldest, newest)
                wanted = (
                    keys.items(self._number, variant, piece, bucket)
                    for piece in slices
                    for bucket in range(self._layout.buckets)
                )
                for field, count in fields(shard, wanted):
                    own.setdefault(field[:-1], Counter())[field[-1:]] += int(count)
            found[name] = own
        return {
            name: {item: Sums.of(counts, self._layout) for item, counts in own.items() if any(counts.values())}
            for name, own in found.items()
        }

    def _bad_items(self, today: int) -> dict[bytes, Counter[int]]:
        found: dict[bytes, Counter[int]] = {}
        for day, field, count in self._bad(today, self._layout.buckets):
            if not field[-1:].isdigit():
                found.setdefault(field[:-1], Counter())[day] += count
        return found

    def _bad_categories(self, today: int) -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = {}
        names = [*sorted(self._settings.categories), OTHER]
        # Categories are in the first bucket.
        for day, field, count in self._bad(today, 1):
            if field[-1:].isdigit():
                found.setdefault(names[int(field)], Counter())[day] += count
        return found

    def _bad(self, today: int, buckets: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield (day, field, bad answers) of the days that count today."""
        for shard in self._store:
            for day in self._places(shard, shard.keys.bad_days(self._number), today - BAD_DAYS, today):
                wanted = (shard.keys.bad(self._number, day, bucket) for bucket in range(buckets))
                yield from ((day, field, int(count)) for field, count in fields(shard, wanted))

    def names(self, items: Iterable[bytes], newest_ms: int) -> Mapping[bytes, str]:
        """Return the ids of items that were shown within the horizon; `OTHERS` has a name that says so."""
        wanted = list(dict.fromkeys(items))
        found = {item: item.hex() for item in wanted} | {OTHERS: OTHERS_NAME}
        layout = self._layout
        oldest, newest = layout.oldest(newest_ms), layout.slice_of(newest_ms)
        for shard in self._store:
            for era in range(layout.era_of(oldest), layout.era_of(newest) + 1):
                for some in _chunks(iter(wanted)):
                    keys = [shard.keys.item_names(self._number, era, layout.bucket(item)) for item in some]
                    with unavailable(self._store.settings):
                        pipeline = shard.client.pipeline(transaction=False)
                        for key, item in zip(keys, some, strict=True):
                            pipeline.hget(key, item)
                        names = pipeline.execute()
                    found |= {item: name.decode() for item, name in zip(some, names, strict=True) if name is not None}
        return found

    def items(self, grades: Sequence[float]) -> StoredItems:
        """Return what the horizon says of items; `grades` are those of the prior."""
        newest_ms = self.newest_ms()
        nothing: dict[str, dict[bytes, Sums]] = {variant: {} for variant in sorted(self._settings.variants)}
        counts = nothing if newest_ms is None else self.counts(newest_ms)
        names = self.names((item for own in counts.values() for item in own), newest_ms or 0)
        counted = self._settings.items
        return StoredItems(
            since_ms=None if newest_ms is None else self._layout.oldest(newest_ms) * self._layout.days * DAY_MS,
            by_variant={variant: {names[item]: sums for item, sums in own.items()} for variant, own in counts.items()},
            # Of a catalogue of which only a part is counted nobody knows how much was shown.
            catalogue=(counted.catalogue if counted is not None and counted.one_in == 1 else None) or frozenset(),
            grades=grades,
        )

    def attention(self, by: Literal["item", "category"]) -> tuple[Entry, ...]:
        """Return what to look at first on the day of the newest response."""
        newest_ms = self.newest_ms()
        if newest_ms is None:
            return ()
        today = newest_ms // DAY_MS
        if by == "category":
            return first_to_look_at(self._bad_categories(today), today)
        items = self._bad_items(today)
        entries = first_to_look_at({item.hex(): days for item, days in items.items()}, today)
        names = self.names((bytes.fromhex(entry.name) for entry in entries), newest_ms)
        named = [replace(entry, name=names[bytes.fromhex(entry.name)]) for entry in entries]
        return tuple(sorted(named, key=lambda entry: (-entry.urgency, entry.name)))

    def _places(self, shard: RedisStore, index: bytes, oldest: int, newest: int) -> Sequence[int]:
        with unavailable(self._store.settings):
            return sorted(place for place in map(int, shard.client.zrange(index, 0, -1)) if oldest <= place <= newest)


def fields(shard: RedisStore, names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (field, number) of the hashes, of all their fields that are not 0."""
    waiting = iter(names)
    for some in _chunks(waiting):
        with unavailable(shard.settings):
            pipeline = shard.client.pipeline(transaction=False)
            for name in some:
                pipeline.hgetall(name)
            replies = pipeline.execute()
        for fields in replies:
            yield from ((field, count) for field, count in fields.items() if count != b"0")


def _chunks(items: Iterator[bytes]) -> Iterator[list[bytes]]:
    while some := list(islice(items, _AT_ONCE)):
        yield some
