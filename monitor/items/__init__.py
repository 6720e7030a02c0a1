"""What becomes of single items: what ratings are worth, what to look at first, how often and how mixed items come.

Plain functions of counts and lists, no store and no files. Formulas, sources and what each is good for: docs/items.md.
"""

from __future__ import annotations

from monitor.items.attention import Entry
from monitor.items.overview import Answer, EntryKind, Overview, Variety, categories

__all__ = [
    "Answer",
    "Entry",
    "EntryKind",
    "Overview",
    "Variety",
    "categories",
]
