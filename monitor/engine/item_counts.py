"""The counts of items that a response adds: a pure function of its row.

Each item of the list is counted as shown, and with every student's grade of it; a bad answer is counted under its
items and its category (docs/items.md). The counts of an item are in one of many small hashes, chosen by the item's own
hash: servers keep a hash of up to 128 fields as a list without pointers, in a fraction of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, final

from monitor.clock import DAY_MS
from monitor.config import ExperimentSettings
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import ITEM_BYTES, IdHasher
from monitor.engine.response_row import NO_RESPONSE, ResponseRow, item_index
from monitor.metrics import BAD, GOOD, RATINGS, SHOWN, SQUARES, TOTAL, ItemLayout, bad_answer_count

OTHERS: Final = bytes(ITEM_BYTES)
"""The hash under which all items are counted that are not in the catalogue."""

Counts: TypeAlias = "dict[tuple[bytes, bytes], int]"
"""(key, field) → integer."""

IndexMember: TypeAlias = "tuple[bytes, int]"
"""(key of an index, number of a slice, day or era that the index lists)."""

ItemName: TypeAlias = "tuple[tuple[bytes, bytes], str, IndexMember]"
"""((key, item's hash), item's id, member of the index of such keys)."""


class ItemKeys(Protocol):
    """The keys of items' counts and names; `monitor.state.Keys` documents them."""

    def items(self, experiment: int, variant: int, piece: int, bucket: int) -> bytes: ...
    def item_slices(self, experiment: int, variant: int) -> bytes: ...
    def bad(self, experiment: int, day: int, bucket: int) -> bytes: ...
    def bad_days(self, experiment: int) -> bytes: ...
    def item_names(self, experiment: int, era: int, bucket: int) -> bytes: ...
    def item_eras(self, experiment: int) -> bytes: ...


@final
class ItemCounts:
    """The counts of one experiment's items."""

    def __init__(
        self, number: int, settings: ExperimentSettings, rules: GradingRules, ids: IdHasher, keys: ItemKeys
    ) -> None:
        assert settings.items is not None
        self._number = number
        self._rules = rules
        self._keys = keys
        self._relevant_grade = settings.relevant_grade
        self._one_in = settings.items.one_in
        self._catalogue = (
            None
            if settings.items.catalogue is None
            else frozenset([ids.item(item) for item in settings.items.catalogue])
        )
        self.layout = ItemLayout.of(settings)

    def counts(self, row: ResponseRow) -> Counts:
        """Return the counts that a row adds; none without its response."""
        counts: Counts = {}
        if row.arm == NO_RESPONSE:
            return counts
        layout, number, variant = self.layout, self._number, row.arm & 255
        piece = layout.slice_of(row.timestamp_ms)
        shown = self.shown(row.items)
        keys = {item: self._keys.items(number, variant, piece, layout.bucket(item)) for item in shown}
        for item in shown:
            _add(counts, keys[item], item + SHOWN, 1)
        grades = []
        for (_, judged_item), (grade, _) in self._rules.judgements(row).items():
            if item_index(judged_item, row.items) < 0:
                continue
            grades.append(grade)
            item = self._counted_as(judged_item)
            if not item:
                continue
            key = keys[item]
            _add(counts, key, item + RATINGS, 1)
            _add(counts, key, item + TOTAL, layout.grade(grade))
            _add(counts, key, item + SQUARES, layout.square(grade))
            if grade >= self._relevant_grade:
                _add(counts, key, item + GOOD, 1)
        if not row.items or (grades and max(grades) < self._relevant_grade):
            self._add_bad(counts, row, shown)
        return {place: count for place, count in counts.items() if count}

    def _add_bad(self, counts: Counts, row: ResponseRow, shown: list[bytes]) -> None:
        weight = bad_answer_count(row.review_score())
        day = row.timestamp_ms // DAY_MS
        for item in set(shown):
            _add(counts, self._keys.bad(self._number, day, self.layout.bucket(item)), item + BAD, weight)
        if row.category >= 0:
            _add(counts, self._keys.bad(self._number, day, 0), b"%d" % row.category, weight)

    def shown(self, items: bytes) -> list[bytes]:
        """Return the hashes under which a list's items are counted."""
        hashes = [self._counted_as(items[at : at + ITEM_BYTES]) for at in range(0, len(items), ITEM_BYTES)]
        return [item for item in hashes if item]

    def _counted_as(self, item: bytes) -> bytes:
        """Return the hash under which an item is counted: its own, `OTHERS`, or b"" if it is not in the sample.

        The bucket depends on the first four bytes, the sample on the last four.
        """
        if self._catalogue is not None and item not in self._catalogue:
            return OTHERS
        return item if self._one_in == 1 or int.from_bytes(item[-4:]) % self._one_in == 0 else b""

    def names(self, row: ResponseRow, items: bytes, item_ids: Sequence[str]) -> list[ItemName]:
        """Return the names to store of a response's items: of those that are counted under their own hash."""
        layout, keys, number = self.layout, self._keys, self._number
        era = layout.era_of(layout.slice_of(row.timestamp_ms))
        index = keys.item_eras(number)
        names: list[ItemName] = []
        for position, item_id in enumerate(item_ids):
            item = items[position * ITEM_BYTES : (position + 1) * ITEM_BYTES]
            if self._counted_as(item) == item:
                names.append(((keys.item_names(number, era, layout.bucket(item)), item), item_id, (index, era)))
        return names

    def index_members(self, row: ResponseRow) -> list[IndexMember]:
        """Return the members of indexes that list the counts which a row may change."""
        return [
            (self._keys.item_slices(self._number, row.arm & 255), self.layout.slice_of(row.timestamp_ms)),
            (self._keys.bad_days(self._number), row.timestamp_ms // DAY_MS),
        ]


def _add(counts: Counts, key: bytes, field: bytes, number: int) -> None:
    counts[key, field] = counts.get((key, field), 0) + number
