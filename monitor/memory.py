"""How Python and the C library keep memory: a service needs as much again with every poll and every scrape."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

from monitor.arenas import use_huge_pages

_COLLECT_AFTER: Final = 400_000
"""Objects more than there were, between two runs of Python's cyclic garbage collector, which walks every cached row.
What a worker remembers is fewer, with a batch of the largest size that is advised."""
_OPTIONS: Final = (
    (-8, 1),  # M_ARENA_MAX: what one thread has freed, the others use
    (-3, 16 << 20),  # M_MMAP_THRESHOLD: smaller blocks are not mapped by themselves, nor given back at once
    (-1, 32 << 20),  # M_TRIM_THRESHOLD: so much may stay at the end of the heap
)
"""Of mallopt(3); sizes are in bytes."""


def keep_memory() -> None:
    """Have this process look for garbage seldom, use large pages, and use memory again instead of giving it back.

    Page faults cost much, and so does finding out where a page is.

    To be called before other threads allocate. Where the C library is not glibc, its memory stays as it is.
    """
    gc.set_threshold(_COLLECT_AFTER)
    use_huge_pages()
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option in _OPTIONS:
            library.mallopt(*option)
