"""What a response adds to the counts of items: a pure function of its row.

Each item of the list is counted as shown, and with every student's grade of it; a bad answer is counted under its
items and its category (docs/items.md). The counts of an item lie in one of many small hashes, chosen by the item's own
hash: servers keep a hash of up to 128 fields as a list without pointers, in a fraction of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, final

from monitor.clock import DAY_MS
from monitor.config import ExperimentSettings
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import ITEM_BYTES, IdHasher
from monitor.engine.response_row import NO_RESPONSE, ResponseRow
from monitor.items.attention import answers
from monitor.items.layout import BAD, GOOD, OTHERS, RATINGS, SHOWN, SQUARES, TOTAL, ItemLayout
from monitor.store.keys import Keys

Counts: TypeAlias = "dict[tuple[bytes, bytes], int]"
"""(key, field) → whole number."""

Name: TypeAlias = "tuple[tuple[bytes, bytes], str, bytes, int]"
"""((key, item), its id, the index that names the key, its place there)."""


@final
class ItemCounts:
    """Counts what rows of one experiment say about items."""

    def __init__(
        self, number: int, settings: ExperimentSettings, rules: GradingRules, identities: IdHasher, keys: Keys
    ) -> None:
        assert settings.items is not None
        self._number = number
        self._rules = rules
        self._keys = keys
        self._relevant = settings.relevant_grade
        self._one_in = settings.items.one_in
        self._catalogue = (
            None
            if settings.items.catalogue is None
            else frozenset([identities.item(item) for item in settings.items.catalogue])
        )
        self.layout = ItemLayout.of(settings)

    def of(self, row: ResponseRow) -> Counts:
        """Return what a row adds; nothing without its response."""
        found: Counts = {}
        if row.arm == NO_RESPONSE:
            return found
        layout, keys, number, variant = self.layout, self._keys, self._number, row.arm & 255
        piece = layout.slice_of(row.timestamp_ms)
        shown = self.shown(row.items)
        names = {item: keys.items(number, variant, piece, layout.bucket(item)) for item in shown}
        for item in shown:
            _add(found, names[item], item + SHOWN, 1)
        grades = []
        for (_, item), (grade, _) in self._rules.judgements(row).items():
            if not _is_in(item, row.items):
                continue
            grades.append(grade)
            item = self._counted(item)  # noqa: PLW2901  what stands for it
            if not item:
                continue
            name = names[item]
            _add(found, name, item + RATINGS, 1)
            _add(found, name, item + TOTAL, layout.grade(grade))
            _add(found, name, item + SQUARES, layout.square(grade))
            if grade >= self._relevant:
                _add(found, name, item + GOOD, 1)
        if not row.items or (grades and max(grades) < self._relevant):
            self._add_bad(found, row, shown)
        return {place: number for place, number in found.items() if number}

    def _add_bad(self, found: Counts, row: ResponseRow, shown: list[bytes]) -> None:
        weight = answers(row.review_score())
        day = row.timestamp_ms // DAY_MS
        for item in set(shown):
            _add(found, self._keys.bad(self._number, day, self.layout.bucket(item)), item + BAD, weight)
        if row.category >= 0:
            _add(found, self._keys.bad(self._number, day, 0), b"%d" % row.category, weight)

    def shown(self, items: bytes) -> list[bytes]:
        """Return the hashes under which a list's items are counted."""
        found = [self._counted(items[at : at + ITEM_BYTES]) for at in range(0, len(items), ITEM_BYTES)]
        return [item for item in found if item]

    def _counted(self, item: bytes) -> bytes:
        """Return the hash that stands for an item: its own, `OTHERS`, or nothing if it is not in the sample.

        The bucket goes by the first four bytes, the sample by the last four.
        """
        if self._catalogue is not None and item not in self._catalogue:
            return OTHERS
        return item if self._one_in == 1 or int.from_bytes(item[-4:]) % self._one_in == 0 else b""

    def names(self, row: ResponseRow, items: bytes, ids: Sequence[str]) -> Iterator[Name]:
        """Yield the names to be kept of a response's items: of those that are counted by themselves."""
        layout, keys, number = self.layout, self._keys, self._number
        era = layout.era_of(layout.slice_of(row.timestamp_ms))
        index = keys.item_eras(number)
        for at, name in enumerate(ids):
            item = items[at * ITEM_BYTES : (at + 1) * ITEM_BYTES]
            if self._counted(item) == item:
                yield (keys.item_names(number, era, layout.bucket(item)), item), name, index, era

    def stamps(self, row: ResponseRow) -> Iterator[tuple[bytes, int]]:
        """Yield the indexes that name the records which a row may change, with their places in them."""
        yield self._keys.item_slices(self._number, row.arm & 255), self.layout.slice_of(row.timestamp_ms)
        yield self._keys.bad_days(self._number), row.timestamp_ms // DAY_MS


def _is_in(item: bytes, items: bytes) -> bool:
    return any(items[at : at + ITEM_BYTES] == item for at in range(0, len(items), ITEM_BYTES))


def _add(counts: Counts, key: bytes, field: bytes, number: int) -> None:
    counts[key, field] = counts.get((key, field), 0) + number
