"""The history of an experiment's declaration: changes while it ran, completeness of its numbers, and archiving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from monitor.config import ExperimentChange

_PER_CENT: Final = 100


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How much of a backfill is done: of the events from before a declaration, or for a new definition."""

    state: Literal["running", "failed"]
    share: float | None = None
    """Fraction of the events that are counted, from 0 to 1; None if unknown."""
    reason: str | None = None
    """Why the backfill failed; None while it runs."""

    def describe(self) -> str:
        """Return the progress as the end of a sentence.

        >>> BackfillProgress("running", 0.434).describe(), BackfillProgress("running").describe()
        ('is 43 % filled', 'is being filled')
        """
        if self.state == "failed":
            return f"could not be filled: {(self.reason or 'unknown reason').rstrip('.')}"
        return "is being filled" if self.share is None else f"is {int(_PER_CENT * self.share)} % filled"


@dataclass(frozen=True, slots=True)
class ExperimentHistory:
    """How the declaration of an experiment has changed, and which of its events the numbers contain."""

    declared_at_ms: int | None = None
    """None if unknown."""
    definition_version: int = 1
    definition_since_ms: int | None = None
    """The time from which the definition applies; None if unknown."""
    changes: tuple[ExperimentChange, ...] = ()
    """By ascending time."""
    archived_at_ms: int | None = None
    """None if the experiment is not archived."""
    complete_since_ms: int | None = None
    """The event time from which on no event is missing; None: nothing is missing."""
    backfill: BackfillProgress | None = None
    """The unfinished backfill of the newest definition; None if its numbers are filled."""
    is_previous_definition: bool = False
    """Whether the numbers are those of the previous definition, which ended at `definition_since_ms`."""

    def changes_before(self, at_ms: int) -> list[ExperimentChange]:
        """Return the changes before a time."""
        return [change for change in self.changes if change.at_ms < at_ms]

    @property
    def is_archived(self) -> bool:
        """Whether the experiment's events do not count any more."""
        return self.archived_at_ms is not None

    @property
    def is_incomplete(self) -> bool:
        """Whether the displayed numbers lack events that a backfill still has to count."""
        return self.backfill is not None and not self.is_previous_definition

    @property
    def frozen_at_ms(self) -> int | None:
        """The time from which on the displayed numbers do not change; None if they do."""
        return self.definition_since_ms if self.is_previous_definition else self.archived_at_ms
