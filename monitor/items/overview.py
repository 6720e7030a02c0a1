"""Everything about an experiment's items at once, from its responses: a pure function of the set of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from monitor.items.attention import DAY_MS, BadAnswer, Entry, daily, first_to_look_at
from monitor.items.catalogue import Shown
from monitor.items.scores import ItemScore

EntryKind: TypeAlias = Literal["query", "category", "item"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, and what students made of it."""

    variant: str
    at_ms: int
    student: str
    """Of a response without a student, something that no other response has."""
    query_id: str | None
    category: str | None
    items: tuple[str, ...]
    ratings: tuple[tuple[str, float], ...]
    """(item of these, grade): every student's grade of an item counts once per response."""
    review: float | None
    """The score of the latest reaction of the kind `reviewed`."""

    def is_bad(self, relevant_grade: float) -> bool:
        """Return whether there is no item in it, or graded ones of which none is relevant."""
        grades = [grade for _, grade in self.ratings]
        return not self.items or (bool(grades) and max(grades) < relevant_grade)

    def entries(self, kind: EntryKind) -> Sequence[str]:
        """Return which entries it would be a bad answer of."""
        if kind == "item":
            return self.items
        name = self.query_id if kind == "query" else self.category
        return () if name is None else (name,)


@dataclass(frozen=True, slots=True)
class Overview:
    """An experiment's items."""

    shown: Mapping[str, Shown]
    """By variant."""
    scores: tuple[tuple[str, ItemScore], ...]
    """Rated items, by falling bound of the mean grade, then by name."""
    unrated: int
    """Items that were shown, and that nobody rated."""
    entries: tuple[Entry, ...]
    """What to look at first, on the day of the newest response."""

    @classmethod
    def of(
        cls,
        given: Iterable[Answer],
        variants: Iterable[str],
        *,
        relevant_grade: float,
        grades: Sequence[float],
        kind: EntryKind,
    ) -> Overview:
        """Return the overview; `grades` are those of the prior, `kind` says what the entries are."""
        answers = list(given)
        counts: dict[str, Counter[float]] = defaultdict(Counter)
        for answer in answers:
            for item, grade in answer.ratings:
                counts[item][grade] += 1
        scored = {
            item: ItemScore.of(each, relevant_grade=relevant_grade, grades=grades) for item, each in counts.items()
        }
        bad = daily(
            BadAnswer(entry, answer.at_ms, answer.review)
            for answer in answers
            if answer.is_bad(relevant_grade)
            for entry in answer.entries(kind)
        )
        today = max((answer.at_ms for answer in answers), default=0) // DAY_MS
        return cls(
            {name: Shown.of(answer.items for answer in answers if answer.variant == name) for name in variants},
            tuple(sorted(scored.items(), key=lambda each: (-(each[1].mean_lower or 0), each[0]))),
            len({item for answer in answers for item in answer.items}.difference(scored)),
            first_to_look_at(bad, today),
        )

    def to_json(self, catalogue: Collection[str], n: int) -> dict[str, object]:
        """Return everything as one JSON object, with the n items that each variant shows most often."""
        return {
            "variants": {
                name: {
                    "responses": shown.responses,
                    "empty_share": shown.empty_share,
                    "items": len(shown.counts),
                    "coverage": shown.coverage(catalogue),
                    "most_shown": asdict(shown.leaders(n)),
                }
                for name, shown in self.shown.items()
            },
            "items": [{"item": item, **asdict(score)} for item, score in self.scores],
            "unrated": self.unrated,
            "first_to_look_at": [entry.to_json() for entry in self.entries],
        }


def categories(given: Iterable[Answer], since_ms: int) -> tuple[Counter[str], Counter[str]]:
    """Return the students by category since then, and before: each once per side, with the first question there."""
    first: tuple[dict[str, tuple[int, str]], dict[str, tuple[int, str]]] = ({}, {})
    for answer in given:
        if answer.category is not None:
            side = first[answer.at_ms < since_ms]
            new = answer.at_ms, answer.category
            side[answer.student] = min(new, side.get(answer.student, new))
    now, before = (Counter(category for _, category in side.values()) for side in first)
    return now, before
