"""Counts of the response events of an experiment that are missing from its sums, by variant and reason.

The counts change in the same commit as the positions, so every event is counted once. Fields of
`StoreKeys.data_quality`; v is the index of a variant:

    rejected:v:REASON       rejected responses of a declared variant
    late:v                  late responses
    placeholder_user:v      responses with a placeholder instead of a user id
    repeated_items:v        responses with an item more than once
    undeclared:NAME         responses of an undeclared variant, valid or rejected; NAME has at most 100 characters
    other_undeclared        responses of further undeclared variants, if there are too many to count separately
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from monitor.config import MAX_NAME_LENGTH
from monitor.engine import PRE_PERIOD_VARIANT, BatchChanges, EventBatch
from monitor.state.redis_connection import translating_errors
from monitor.state.store_records import Commit
from monitor.state.store_shard import StoreShard
from monitor.stats import DataQuality, ResponseQuality

OTHER_VARIANTS: Final = "(others)"
"""Stands for the undeclared variants beyond the limit of separately counted ones."""
_OTHER_UNDECLARED_FIELD: Final = b"other_undeclared"
_UNDECLARED_PREFIX: Final = b"undeclared:"
_MAX_UNDECLARED_VARIANTS: Final = 20
"""Undeclared variants of an experiment with a count of their own: anybody may write events with a new name."""


class QualityCounter:
    """Counts the missing responses of a shard, as part of the commit of each batch."""

    def __init__(self, store: StoreShard) -> None:
        self._store = store
        self._undeclared_fields: dict[int, set[bytes]] = {}
        """Experiment number → fields of the undeclared variants that are counted."""

    def append_to_commit(self, commit: Commit, events: EventBatch, batch: BatchChanges) -> None:
        """Add the missing responses of a batch to the commit. Raises `StoreUnavailable`."""
        for (variant_key, reason), responses in events.rejected_responses.items():
            self._count(commit, variant_key >> 8, b"rejected:%d:%b" % (variant_key & 255, reason.encode()), responses)
        for prefix, counts in (
            (b"late", batch.late_responses),
            (b"placeholder_user", events.placeholder_users),
            (b"repeated_items", events.repeated_items),
        ):
            for variant_key, responses in counts.items():
                if variant_key & 255 != PRE_PERIOD_VARIANT:
                    self._count(commit, variant_key >> 8, b"%b:%d" % (prefix, variant_key & 255), responses)
        for (number, name), responses in events.undeclared_variants.items():
            self._count(commit, number, self._undeclared_field(number, name), responses)

    def _count(self, commit: Commit, number: int, field: bytes, responses: int) -> None:
        commit.counter_increments[self._store.keys.data_quality(number), field] += responses

    def _undeclared_field(self, number: int, name: str) -> bytes:
        fields = self._undeclared_fields.get(number)
        if fields is None:
            with translating_errors(self._store.settings):
                stored_fields = self._store.client.hkeys(self._store.keys.data_quality(number))
            fields = {field for field in stored_fields if field.startswith(_UNDECLARED_PREFIX)}
            self._undeclared_fields[number] = fields
        field = _UNDECLARED_PREFIX + name[:MAX_NAME_LENGTH].encode(errors="replace")
        if field not in fields and len(fields) >= _MAX_UNDECLARED_VARIANTS:
            return _OTHER_UNDECLARED_FIELD
        fields.add(field)
        return field


def data_quality_from_counts(
    counts: Mapping[bytes, int],
    responses: Mapping[str, int],
    uncounted_reactions: Mapping[str, Mapping[str, int]],
    responses_per_student: float,
    other_spellings: Mapping[str, int],
) -> DataQuality:
    """Return the data quality of an experiment from the counts of `StoreKeys.data_quality`, summed over the shards.

    `responses` and `uncounted_reactions` have a value for each variant.
    """
    names = sorted(responses)
    rejected: dict[str, dict[str, int]] = {name: {} for name in names}
    numbers: dict[tuple[str, str], int] = {}
    undeclared: dict[str, int] = {}
    for field, count in sorted(counts.items()):
        kind, _, rest = field.decode(errors="replace").partition(":")
        if kind == "undeclared":
            undeclared[rest] = count
        elif field == _OTHER_UNDECLARED_FIELD:
            undeclared[OTHER_VARIANTS] = count
        else:
            index, _, reason = rest.partition(":")
            if kind == "rejected":
                rejected[names[int(index)]][reason] = count
            else:
                numbers[kind, names[int(index)]] = count
    return DataQuality(
        variants={
            name: ResponseQuality(
                responses=responses[name],
                rejected=rejected[name],
                late=numbers.get(("late", name), 0),
                placeholder_users=numbers.get(("placeholder_user", name), 0),
                repeated_items=numbers.get(("repeated_items", name), 0),
                uncounted_reactions=dict(sorted(uncounted_reactions[name].items())),
            )
            for name in names
        },
        undeclared_variants=_largest_first(undeclared),
        other_spellings=_largest_first(other_spellings),
        responses_per_student=responses_per_student,
    )


def _largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    entries: Sequence[tuple[str, int]] = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return dict(entries)
