"""What becomes of single items: what ratings are worth, what to look at first, how often and how mixed items come.

Plain functions of counts and lists, no store and no files. Formulas, sources and what each is good for: docs/items.md.
"""

from __future__ import annotations

from monitor.items.attention import BadAnswer, Entry, answers, daily, first_to_look_at, history, priority
from monitor.items.catalogue import Leaders, Shown, leaders
from monitor.items.diversity import alpha_dcg, alpha_ndcg, ideal_order, intra_list_similarity, jaccard, mmr
from monitor.items.overview import Answer, EntryKind, Overview, categories
from monitor.items.scores import ItemScore, mean_grade, star_lower, wilson_lower
from monitor.items.variety import Variety

__all__ = [
    "Answer",
    "BadAnswer",
    "Entry",
    "EntryKind",
    "ItemScore",
    "Leaders",
    "Overview",
    "Shown",
    "Variety",
    "alpha_dcg",
    "alpha_ndcg",
    "answers",
    "categories",
    "daily",
    "first_to_look_at",
    "history",
    "ideal_order",
    "intra_list_similarity",
    "jaccard",
    "leaders",
    "mean_grade",
    "mmr",
    "priority",
    "star_lower",
    "wilson_lower",
]
