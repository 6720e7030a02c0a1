"""Counts of items: appearances in responses, grades and bad answers of each item.

The counts that a response adds are a pure function of its row. Each item of the list is counted as shown, and with each
student's grade. A bad answer is counted under its items and its category (docs/items.md).

Counts are stored in many small Redis hashes, the buckets; the keyed hash of an item's id selects the bucket. Redis
stores a hash of up to 128 fields as a list without pointers, which takes a fraction of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, final

from monitor.config import ExperimentSettings
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import ITEM_HASH_BYTES, IdHasher
from monitor.engine.response_row import NO_RESPONSE, ResponseRow, find_item
from monitor.metrics import (
    BAD_ANSWERS_FIELD,
    GOOD_RATINGS_FIELD,
    GRADE_SQUARES_FIELD,
    GRADE_TOTAL_FIELD,
    RATINGS_FIELD,
    SHOWN_FIELD,
    ItemLayout,
    bad_answer_count,
)

OTHER_ITEMS_HASH: Final = bytes(ITEM_HASH_BYTES)
"""Items that are not in the catalogue are all counted under this hash."""

FieldCounts: TypeAlias = "dict[tuple[bytes, bytes], int]"
"""(key of a Redis hash, field) → integer."""

IndexMember: TypeAlias = "tuple[bytes, int]"
"""(key of an index, number of a time slice, day or era that the index lists)."""

StoredItemId: TypeAlias = "tuple[tuple[bytes, bytes], str, IndexMember]"
"""((key, hash of an item), id of the item, member of the index of keys)."""


class ItemKeys(Protocol):
    """Redis keys of item counts and item ids; `monitor.state.keys` documents all keys."""

    def item_counts(self, experiment: int, variant: int, slice_number: int, bucket: int) -> bytes: ...
    def item_index(self, experiment: int, variant: int) -> bytes: ...
    def bad_answers(self, experiment: int, day: int, bucket: int) -> bytes: ...
    def bad_answer_index(self, experiment: int) -> bytes: ...
    def item_ids(self, experiment: int, era: int, bucket: int) -> bytes: ...
    def item_id_index(self, experiment: int) -> bytes: ...


@final
class ItemCounter:
    """Counts the items of an experiment's responses."""

    def __init__(
        self, experiment_number: int, settings: ExperimentSettings, rules: GradingRules, ids: IdHasher, keys: ItemKeys
    ) -> None:
        assert settings.items is not None
        self._experiment_number = experiment_number
        self._rules = rules
        self._keys = keys
        self._relevant_grade = settings.relevant_grade
        self._sample_one_in = settings.items.sample_one_in
        self._catalogue = (
            None
            if settings.items.catalogue is None
            else frozenset([ids.hash_item(item) for item in settings.items.catalogue])
        )
        self.layout = ItemLayout.for_experiment(settings)

    def count_row(self, row: ResponseRow) -> FieldCounts:
        """Return the counts that a row adds; {} if the response has not arrived."""
        counts: FieldCounts = {}
        if row.variant_key == NO_RESPONSE:
            return counts
        layout, experiment_number, variant = self.layout, self._experiment_number, row.variant_key & 255
        slice_number = layout.slice_of(row.timestamp_ms)
        counted_hashes = self.counted_items(row.item_hashes)
        keys = {
            item: self._keys.item_counts(experiment_number, variant, slice_number, layout.bucket_of(item))
            for item in counted_hashes
        }
        for item in counted_hashes:
            _add(counts, keys[item], item + SHOWN_FIELD, 1)
        grades = []
        for (_, judged_item), (grade, _) in self._rules.judgements(row).items():
            if find_item(judged_item, row.item_hashes) < 0:
                continue
            grades.append(grade)
            item = self._counting_hash(judged_item)
            if not item:
                continue
            key = keys[item]
            _add(counts, key, item + RATINGS_FIELD, 1)
            _add(counts, key, item + GRADE_TOTAL_FIELD, layout.fixed_point_grade(grade))
            _add(counts, key, item + GRADE_SQUARES_FIELD, layout.fixed_point_square(grade))
            if grade >= self._relevant_grade:
                _add(counts, key, item + GOOD_RATINGS_FIELD, 1)
        if not row.item_hashes or (grades and max(grades) < self._relevant_grade):
            self._add_bad_answer(counts, row, counted_hashes)
        return {count_key: count for count_key, count in counts.items() if count}

    def _add_bad_answer(self, counts: FieldCounts, row: ResponseRow, counted_hashes: list[bytes]) -> None:
        """Add the weight of a bad answer to the counts of the answer's items and category."""
        weight = bad_answer_count(row.review_score())
        day = self.layout.calendar.day_number(row.timestamp_ms)
        for item in set(counted_hashes):
            _add(
                counts,
                self._keys.bad_answers(self._experiment_number, day, self.layout.bucket_of(item)),
                item + BAD_ANSWERS_FIELD,
                weight,
            )
        if row.category >= 0:
            _add(counts, self._keys.bad_answers(self._experiment_number, day, 0), b"%d" % row.category, weight)

    def counted_items(self, item_hashes: bytes) -> list[bytes]:
        """Return the counting hashes of a list of item hashes; items outside the sample are omitted."""
        counting_hashes = [
            self._counting_hash(item_hashes[start : start + ITEM_HASH_BYTES])
            for start in range(0, len(item_hashes), ITEM_HASH_BYTES)
        ]
        return [counting_hash for counting_hash in counting_hashes if counting_hash]

    def _counting_hash(self, item: bytes) -> bytes:
        """Return the hash under which an item is counted.

        An item outside the catalogue has `OTHER_ITEMS_HASH`, an item outside the sample b"", any other item its hash.
        The sample depends on the last four bytes of the hash, because the bucket depends on the first four.
        """
        if self._catalogue is not None and item not in self._catalogue:
            return OTHER_ITEMS_HASH
        return item if self._sample_one_in == 1 or int.from_bytes(item[-4:]) % self._sample_one_in == 0 else b""

    def ids_to_store(self, row: ResponseRow, item_hashes: bytes, item_ids: Sequence[str]) -> list[StoredItemId]:
        """Return the ids to store of a response's items: of all items that are counted under their own hash."""
        layout, keys, experiment_number = self.layout, self._keys, self._experiment_number
        era = layout.era_of(layout.slice_of(row.timestamp_ms))
        index = keys.item_id_index(experiment_number)
        stored_ids: list[StoredItemId] = []
        for position, item_id in enumerate(item_ids):
            item = item_hashes[position * ITEM_HASH_BYTES : (position + 1) * ITEM_HASH_BYTES]
            if self._counting_hash(item) == item:
                key = keys.item_ids(experiment_number, era, layout.bucket_of(item))
                stored_ids.append(((key, item), item_id, (index, era)))
        return stored_ids

    def index_members(self, row: ResponseRow) -> list[IndexMember]:
        """Return the members of the indexes of all counts that a row may change."""
        return [
            (
                self._keys.item_index(self._experiment_number, row.variant_key & 255),
                self.layout.slice_of(row.timestamp_ms),
            ),
            (
                self._keys.bad_answer_index(self._experiment_number),
                self.layout.calendar.day_number(row.timestamp_ms),
            ),
        ]


def _add(counts: FieldCounts, key: bytes, field: bytes, change: int) -> None:
    counts[key, field] = counts.get((key, field), 0) + change
