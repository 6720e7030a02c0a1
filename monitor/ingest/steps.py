"""Commits to several shards that are brought to their ends together: no shard waits for what another is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.store import Status

Steps = Iterator[Status | None]
"""One commit: None after each step but the last, which says what became of it."""


def step_of_each(commits: Sequence[Steps]) -> list[Status | None]:
    """Take each a step further."""
    return [next(each) for each in commits]


def together(commits: Sequence[Steps]) -> Status:
    """Bring all to their ends, a step of each in turn; return a status other than "applied", if there is one."""
    waiting, known = commits, list[Status]()
    while waiting:
        said = step_of_each(waiting)
        known += [status for status in said if status is not None]
        waiting = [each for each, status in zip(waiting, said, strict=True) if status is None]
    return next((status for status in known if status != "applied"), "applied")
