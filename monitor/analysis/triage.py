"""Triage: queries, items or categories with bad answers, ranked for human review, the most urgent first.

By default, entries are ranked by the share of bad answers among all responses of the entry on the last ten days. The
priority is the lower bound of Wilson's 95 % interval of this share, so that neither many responses nor a single bad one
put an entry on top.

The published ranking (`urgency`) is by counts. The urgency of an entry is x·0.7 − 4 + Σ w(age)·s: x is the number of
its bad answers today, s the priority of an earlier day by itself, w a weight that falls with the age of that day. The
priority is the logistic function of the urgency. A few bad answers therefore hardly count, about six give a priority of
one half, and more than ten change little: with many responses all priorities are 1. Days are the experiment's.

Analysts correct the counts. A reaction of the kind `reviewed` to a bad answer sets how many bad answers this response
counts as: see `bad_answer_count`. The latest review of a response applies. Each count is a function of one response, so
an entry's counts are integer sums over responses and do not depend on the order of events.

References: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22(158), 1927; Miller,
"How not to sort by average rating", 2009 (the lower bound as the order of a list). Verhulst, "Recherches mathématiques
sur la loi d'accroissement de la population", 1845 (the logistic function). Scale, shift and weights of the urgency are
a convention for teams that review every day, not estimates; all are arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from monitor.analysis.item_scores import wilson_lower_bound
from monitor.clock import DAY_MS
from monitor.config import DecaySpec
from monitor.days import DayCalendar
from monitor.metrics import bad_answer_count, decay_weights

BadAnswersByDay: TypeAlias = Mapping[str, Mapping[int, int]]
"""Entry → day since 1970 → bad answers of the entry on that day."""

ReviewRanking: TypeAlias = Literal["share", "urgency"]
"""Order of a review list: by the share of bad answers, or by the published urgency of their counts."""

REVIEW_DAYS: Final = 10
"""Days of the share of bad answers: today and the days before today."""
PRIORITY_SCALE: Final = 0.7
PRIORITY_SHIFT: Final = 4.0
RECIPROCAL_DECAY: Final = DecaySpec("reciprocal-10d", half_life_ms=None, cutoff_ms=10 * DAY_MS)
"""Weight 1/(1 + days) of an earlier day; 0 from day 10."""

_ABOVE_0: Final = math.nextafter(0.0, 1.0)
_BELOW_1: Final = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class BadAnswer:
    """A bad answer that counts for an entry."""

    entry_name: str
    timestamp_ms: int
    review_score: float | None = None
    """Score of the latest review; None without a review."""


@dataclass(frozen=True, slots=True)
class TriageEntry:
    """A query, item or category in the review list."""

    name: str
    bad_answers_today: int
    bad_answers: int
    """Bad answers of the last `REVIEW_DAYS` days."""
    responses: int
    """Responses of the last `REVIEW_DAYS` days, at least `bad_answers`."""
    history: float
    """Σ w(age)·s over the days before today."""
    urgency: float
    priority: float
    """From 0 to 1: the lower bound of the share of bad answers, or the logistic function of the urgency."""

    @property
    def bad_share(self) -> float:
        """Share of bad answers among the responses; 0 without responses."""
        return self.bad_answers / self.responses if self.responses else 0.0

    @property
    def sort_key(self) -> tuple[float, float, str]:
        """The key of the review order; urgencies differ where priorities round to the same number."""
        return -self.priority, -self.urgency, self.name

    def to_json(self) -> dict[str, object]:
        """Return the entry as an element of the JSON of `items --attention`."""
        return {
            "name": self.name,
            "today": self.bad_answers_today,
            "bad": self.bad_answers,
            "responses": self.responses,
            "bad_share": self.bad_share,
            "history": self.history,
            "urgency": self.urgency,
            "priority": self.priority,
        }


def count_bad_answers_by_day(bad_answers: Iterable[BadAnswer], calendar: DayCalendar) -> dict[str, Counter[int]]:
    """Return entry → day → bad answers, corrected by reviews; entries and days with a count of 0 are absent."""
    counts: dict[str, Counter[int]] = {}
    for bad_answer in bad_answers:
        count = bad_answer_count(bad_answer.review_score)
        if count:
            counts.setdefault(bad_answer.entry_name, Counter())[calendar.day_number(bad_answer.timestamp_ms)] += count
    return counts


def priority(
    count: float, history: float = 0.0, *, scale: float = PRIORITY_SCALE, shift: float = PRIORITY_SHIFT
) -> float:
    """Return the priority 1/(1 + e^(−scale·count + shift − history)), in (0, 1), of a day with `count` bad answers.

    `history` is the `decayed_history` of the days before. ValueError: a count or a history that is negative or not
    finite, a scale that is not a finite number above 0, a shift that is not finite.

    By hand: no bad answer gives 1/(1 + e⁴) = 0.018, ten give 1/(1 + e⁻³) = 0.9526.

    >>> round(priority(0), 3), round(priority(10), 4)
    (0.018, 0.9526)
    """
    return _logistic(_urgency(count, history, scale, shift))


def decayed_history(priorities: Iterable[tuple[float, float]], decay: DecaySpec = RECIPROCAL_DECAY) -> float:
    """Return Σ w(age)·priority over an entry's earlier days, given as pairs of an age in days and a priority.

    By hand: 1/2·0.8 + 1/3·0.4 = 0.5333; from ten days on the weight is 0.

    >>> round(decayed_history([(1, 0.8), (2, 0.4)]), 4), decayed_history([(10, 1.0)])
    (0.5333, 0.0)
    """
    table = np.array([*priorities], dtype=np.float64).reshape(-1, 2)
    return math.fsum(decay_weights(table[:, 0] * DAY_MS, decay) * table[:, 1])


def share_priority(bad_answers: int, responses: int) -> float:
    """Return the lower bound of Wilson's 95 % interval of the share of bad answers; 0 without responses.

    A review may count a response as several bad answers, so the share is of at least as many responses as bad answers.

    By hand, with z² = 3.8415: 30 of 1 000 have (0.03 + 0.00192 − 1.96·√(0.0000291 + 0.00000096))/1.00384 = 0.0211; 3 of
    1 000 have 0.0010; one of one has 1/(1 + z²) = 0.2065.

    >>> [round(share_priority(bad, n), 4) for bad, n in [(30, 1000), (3, 1000), (1, 1), (0, 9), (0, 0)]]
    [0.0211, 0.001, 0.2065, 0.0, 0.0]
    """
    return wilson_lower_bound(bad_answers, max(responses, bad_answers)) or 0.0


def rank_for_review(
    bad_answers: BadAnswersByDay,
    responses: Mapping[str, int],
    today: int,
    *,
    ranking: ReviewRanking = "share",
    decay: DecaySpec = RECIPROCAL_DECAY,
    scale: float = PRIORITY_SCALE,
    shift: float = PRIORITY_SHIFT,
) -> tuple[TriageEntry, ...]:
    """Return the entries by falling priority, then urgency, then by name.

    `responses` has the responses of each entry on the last `REVIEW_DAYS` days; `today` is a day since 1970, later
    days are ignored. `decay`, `scale` and `shift` are those of the urgency.

    An earlier day enters the history with the `priority` of its own count, and with 0 if its count is 0. So an entry
    depends only on the days to which the decay gives a weight, not on the day of its first bad answer. Entries without
    bad answers today and with a history of 0 are absent.
    """
    entries = []
    for name, counts_by_day in bad_answers.items():
        counts = {day: count for day, count in counts_by_day.items() if count > 0}
        recent_count = sum(count for day, count in counts.items() if today - REVIEW_DAYS < day <= today)
        response_count = max(responses.get(name, 0), recent_count)
        count_today = counts.pop(today, 0)
        priorities = [(today - day, priority(count, scale=scale, shift=shift)) for day, count in counts.items()]
        history = decayed_history(priorities, decay)
        if count_today or history:
            urgency = _urgency(count_today, history, scale, shift)
            entry_priority = share_priority(recent_count, response_count) if ranking == "share" else _logistic(urgency)
            entries.append(
                TriageEntry(name, count_today, recent_count, response_count, history, urgency, entry_priority)
            )
    return tuple(sorted(entries, key=lambda entry: entry.sort_key))


def _urgency(count: float, history: float, scale: float, shift: float) -> float:
    for name, value in (("count", count), ("history", history)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, expected a finite number of at least 0")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is {scale!r}, expected a finite number above 0")
    if not math.isfinite(shift):
        raise ValueError(f"shift is {shift!r}, expected a finite number")
    return scale * count - shift + history


def _logistic(urgency: float) -> float:
    """Return 1/(1 + e^−urgency) without overflow, rounded into the open interval (0, 1)."""
    small = math.exp(-abs(urgency))
    value = (1 if urgency >= 0 else small) / (1 + small)
    return min(max(value, _ABOVE_0), _BELOW_1)
