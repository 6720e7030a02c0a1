"""Counts of shown items: catalogue coverage, the share of empty responses, and the items shown most often.

Counts are exact, one integer per item that was ever shown: a sum over responses, independent of the order of events.
A table of fixed size (Space-Saving) would depend on the order: docs/items.md. Only the output is shortened: `top_k`
returns the n largest counts and an upper bound of every other count.

Reference: Ge, Delgado-Battenfeld & Jannach, "Beyond accuracy: evaluating recommender systems by coverage and
serendipity", RecSys 2010.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest


@dataclass(frozen=True, slots=True)
class TopK:
    """The names with the largest counts, and totals of all other names."""

    top_counts: tuple[tuple[str, int], ...]
    """(name, count), largest count first, equal counts by name."""
    other_name_count: int
    """Number of other names with a count above 0."""
    other_count_sum: int
    """Sum of the counts of the other names."""
    other_count_max: int
    """Largest count of the other names; 0 without other names."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object `most_shown` of the commands on items."""
        return {
            "leaders": self.top_counts,
            "others": self.other_name_count,
            "rest": self.other_count_sum,
            "at_most": self.other_count_max,
        }


@dataclass(frozen=True, slots=True)
class ShownItems:
    """Counts of the items that a variant's responses showed."""

    responses: int
    empty_responses: int
    """Responses without any item."""
    counts: Mapping[str, int]
    """Item → number of responses that showed the item."""

    @classmethod
    def of(cls, item_lists: Iterable[Collection[str]]) -> ShownItems:
        """Return the counts over the items of each response; an item counts once per response."""
        responses, empty_responses, counts = 0, 0, Counter[str]()
        for items in item_lists:
            responses += 1
            empty_responses += not items
            counts.update(set(items))
        return cls(responses, empty_responses, counts)

    @property
    def empty_share(self) -> float | None:
        """Share of the responses without any item; None without responses."""
        return self.empty_responses / self.responses if self.responses else None

    def coverage(self, catalogue: Collection[str]) -> float | None:
        """Return the share of the catalogue's items that were shown at least once; None for an empty catalogue.

        Ge et al. 2010 (catalogue coverage). Shown items that are not in the catalogue do not count.

        >>> ShownItems.of([["a", "b"], [], ["a", "x"]]).coverage(["a", "b", "c", "d"])
        0.5
        """
        catalogue_items = set(catalogue)
        shown_count = sum(count > 0 for item, count in self.counts.items() if item in catalogue_items)
        return shown_count / len(catalogue_items) if catalogue_items else None

    def top_items(self, n: int) -> TopK:
        """Return the n items shown most often.

        >>> ShownItems.of([["a", "b"], ["a"], ["c"]]).top_items(1)
        TopK(top_counts=(('a', 2),), other_name_count=2, other_count_sum=2, other_count_max=1)
        """
        return top_k(self.counts, n)


def top_k(counts: Mapping[str, int], n: int) -> TopK:
    """Return the n largest counts; names with a count of 0 are ignored. ValueError: n below 1, a count below 0."""
    if n < 1:
        raise ValueError(f"n is {n!r}, expected at least 1")
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"the count of {name!r} is {count!r}, expected at least 0")
    positive_counts = {name: count for name, count in counts.items() if count}
    # The count after the n largest ones is the bound of all other counts.
    descending = nsmallest(n + 1, positive_counts.items(), key=lambda entry: (-entry[1], entry[0]))
    top_counts = tuple(descending[:n])
    return TopK(
        top_counts,
        other_name_count=len(positive_counts) - len(top_counts),
        other_count_sum=sum(positive_counts.values()) - sum(count for _, count in top_counts),
        other_count_max=descending[n][1] if len(descending) > n else 0,
    )
