"""Huge pages for Python's objects.

This is what is there when nothing is compiled: they stay where Python puts them. arenas.c does what it says.
"""

from __future__ import annotations


def use_huge_pages() -> None:
    """Have Python allocate objects from now on where the kernel may use huge pages, if it does so for who asks.

    What a worker remembers lies scattered over a hundred megabytes, of which the processor knows the places of a few
    pages only.
    """
