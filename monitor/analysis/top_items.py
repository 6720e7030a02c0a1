"""Which items are shown: how much of the catalogue, how often nothing at all, and which most often.

Counts are exact, one whole number per item that was ever shown: a sum over responses, which no order of events changes.
A table of fixed size (Space-Saving) would depend on the order: docs/items.md. What is cut is only the output: `leaders`
tells the n largest, and with them a bound that holds for every other item.

Reference: Ge, Delgado-Battenfeld & Jannach, "Beyond accuracy: evaluating recommender systems by coverage and
serendipity", RecSys 2010.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest


@dataclass(frozen=True, slots=True)
class Leaders:
    """The largest counts, largest first, equals by name; and what is known of all others without naming them."""

    leaders: tuple[tuple[str, int], ...]
    others: int
    """How many more names have a count."""
    rest: int
    """The sum of their counts."""
    at_most: int
    """The largest count that one of them has; 0 where there are none."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a variant's responses showed."""

    responses: int
    empty: int
    """Responses without any item."""
    counts: Mapping[str, int]
    """Item → in how many responses it was."""

    @classmethod
    def of(cls, answers: Iterable[Collection[str]]) -> Shown:
        """Return the counts of the responses' items; an item counts once per response."""
        responses, empty, counts = 0, 0, Counter[str]()
        for items in answers:
            responses += 1
            empty += not items
            counts.update(set(items))
        return cls(responses, empty, counts)

    @property
    def empty_share(self) -> float | None:
        """Return the share of responses without any item, or None without responses."""
        return self.empty / self.responses if self.responses else None

    def coverage(self, catalogue: Collection[str]) -> float | None:
        """Return the share of the catalogue that was shown at least once, or None for an empty catalogue.

        Ge et al. 2010 (catalogue coverage). What was shown and is not in the catalogue does not count.

        >>> Shown.of([["a", "b"], [], ["a", "x"]]).coverage(["a", "b", "c", "d"])
        0.5
        """
        known = set(catalogue)
        return sum(count > 0 for item, count in self.counts.items() if item in known) / len(known) if known else None

    def leaders(self, n: int) -> Leaders:
        """Return the n items shown most often.

        >>> Shown.of([["a", "b"], ["a"], ["c"]]).leaders(1)
        Leaders(leaders=(('a', 2),), others=2, rest=2, at_most=1)
        """
        return leaders(self.counts, n)


def leaders(counts: Mapping[str, int], n: int) -> Leaders:
    """Return the n largest counts; a count of 0 is as good as none. ValueError: n below 1, a count below 0."""
    if n < 1:
        raise ValueError(f"n is {n!r}, expected at least 1")
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"the count of {name!r} is {count!r}, expected at least 0")
    present = {name: count for name, count in counts.items() if count}
    # One more than asked for: its count is the bound of what is not told.
    first = nsmallest(n + 1, present.items(), key=lambda each: (-each[1], each[0]))
    told = first[:n]
    rest = sum(present.values()) - sum(count for _, count in told)
    return Leaders(tuple(told), len(present) - len(told), rest, first[n][1] if len(first) > n else 0)
