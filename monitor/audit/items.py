"""What the rows that are held say about items, against what the store has counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from monitor.clock import DAY_MS
from monitor.engine import Experiment, ItemCounts, ResponseRow
from monitor.items.layout import BAD_DAYS
from monitor.store import Shards
from monitor.store.connection import unavailable

Check = Callable[[tuple[str, str], str, str, int, int], None]
"""(experiment and variant, kind of record, what, stored, recomputed)."""

_EVERYBODY: Final = "all variants"


class ItemAudit:
    """One experiment's items."""

    def __init__(self, store: Shards, experiment: Experiment, counts: ItemCounts) -> None:
        self._store = store
        self._experiment = experiment
        self._counts = counts
        self._expected: dict[bytes, Counter[bytes]] = defaultdict(Counter)
        self._implied: dict[bytes, set[int]] = defaultdict(set)

    def add(self, row: ResponseRow) -> None:
        """Take a row's part."""
        for (key, field), count in self._counts.counts(row).items():
            self._expected[key][field] += count
        for index, place in self._counts.index_members(row):
            self._implied[index].add(place)

    def compare(self, swept_ms: int, newest_ms: int, check: Check) -> None:
        """Compare the slices and days that are kept and of which all rows are held."""
        own, layout, keys = self._experiment, self._counts.layout, self._store.first.keys
        number, buckets = own.number, range(layout.buckets)
        length_ms = layout.days * DAY_MS
        for index, variant in enumerate(sorted(own.settings.variants)):
            where, oldest = (own.settings.name, variant), max(layout.oldest(newest_ms), -(-swept_ms // length_ms))
            for piece in self._places(where, "slice", keys.item_slices(number, index), oldest, check):
                names = [keys.items(number, index, piece, bucket) for bucket in buckets]
                self._compare(where, f"items of slice {piece}", names, check)
        where, oldest = (own.settings.name, _EVERYBODY), max(newest_ms // DAY_MS - BAD_DAYS, -(-swept_ms // DAY_MS))
        for day in self._places(where, "day", keys.bad_days(number), oldest, check):
            names = [keys.bad(number, day, bucket) for bucket in buckets]
            self._compare(where, f"bad answers of day {day}", names, check)

    def _compare(self, where: tuple[str, str], kind: str, names: Sequence[bytes], check: Check) -> None:
        for name in names:
            found: Counter[bytes] = Counter()
            with unavailable(self._store.settings):
                for each in self._everywhere(name):
                    found.update({field: int(count) for field, count in self._store.client.hgetall(each).items()})
            expected = self._expected[name]
            for field in sorted({*found, *expected}):
                label = field.decode() if field.isdigit() else f"{field[:-1].hex()} {field[-1:].decode()}"
                check(where, "items", f"{kind}: {label}", found[field], expected[field])

    def _places(self, where: tuple[str, str], what: str, index: bytes, oldest: int, check: Check) -> list[int]:
        """Return the slices or days that the index names or the rows imply: what it does not name nobody reads."""
        with unavailable(self._store.settings):
            named = {int(place) for name in self._everywhere(index) for place in self._store.client.zrange(name, 0, -1)}
        implied = {place for place in self._implied[index] if place >= oldest}
        for place in sorted(implied):
            check(where, "items", f"{what} {place} is in the index", int(place in named), 1)
        return sorted(place for place in named | implied if place >= oldest)

    def _everywhere(self, key: bytes) -> Iterator[bytes]:
        """Yield a record's name on every shard."""
        for shard in self._store:
            yield shard.keys.prefix + key.removeprefix(self._store.first.keys.prefix)
