"""Events as rows take them: hashes instead of most ids, an arm instead of names.

An event becomes that as soon as it has been read, and what it was read into is let go of: a batch that held all of its
texts until it is applied would be several times as large as the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import MISSING, NO_RESPONSE, Reaction, latency_of, reaction_of
from monitor.events import Feedback, Response
from monitor.ingest.experiment import Experiment


@final
class Answer:
    """A response event as its row takes it; see `monitor.engine.response_row`."""

    __slots__ = (
        "arm", "category", "ids", "items", "latency_ms", "name", "ranks", "student", "timestamp_ms",
        "undeclared",
    )  # fmt: skip

    def __init__(
        self,
        name: bytes,
        timestamp_ms: int,
        arm: int,
        student: bytes,
        items: bytes,
        ranks: tuple[int, ...] | None,
        latency_ms: int,
        category: int,
        ids: tuple[str, ...],
        undeclared: str = "",
    ) -> None:
        """Take what was worked out."""
        self.name: Final = name
        """The stored id of the response."""
        self.timestamp_ms: Final = timestamp_ms
        self.arm: Final = arm
        """`NO_RESPONSE` if the response does not count: then nothing that follows matters."""
        self.student: Final = student
        self.items: Final = items
        self.ranks: Final = ranks
        self.latency_ms: Final = latency_ms
        self.category: Final = category
        self.ids: Final = ids
        """Of the items, where those are counted."""
        self.undeclared: Final = undeclared
        """Its experiment, if the configuration does not have that."""


@final
class Events:
    """The events of one batch, in the order in which they came."""

    __slots__ = ("answered", "answers", "reactions")

    def __init__(self) -> None:
        """Begin with none."""
        self.answers: list[Answer] = []
        self.reactions: list[Reaction] = []
        self.answered: list[bytes] = []
        """Of each reaction, the stored id of the response that it is about."""


@final
class Intake:
    """Knows the experiments' arms, and the key of the hashes."""

    def __init__(self, experiments: Sequence[Experiment], identities: IdHasher) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._identities = identities
        self._last = ""
        self._last_experiment: Experiment | None = None
        """What was asked for last: nearly always what is asked for next."""

    def take(self, events: Events, event: Response | Feedback) -> None:
        """Append an event."""
        if isinstance(event, Response):
            events.answers.append(self._answer(event))
        else:
            events.answered.append(self._identities.response(event.response_id))
            events.reactions.append(reaction_of(event, self._identities))

    def _answer(self, event: Response) -> Answer:
        identities = self._identities
        name, timestamp_ms = identities.response(event.response_id), event.timestamp_ms
        if event.experiment is not self._last:
            self._last = event.experiment
            self._last_experiment = self._experiments.get(event.experiment)
        experiment = self._last_experiment
        arm = NO_RESPONSE if experiment is None else experiment.arm_of(event.variant, timestamp_ms)
        if experiment is None or arm == NO_RESPONSE:
            undeclared = event.experiment if experiment is None else ""
            return Answer(name, timestamp_ms, NO_RESPONSE, b"", b"", None, MISSING, MISSING, (), undeclared)
        return Answer(
            name,
            timestamp_ms,
            arm,
            b"" if event.user_id is None else identities.student(event.user_id),
            identities.items(event.items),
            event.ranks,
            latency_of(event),
            experiment.category_of(event.category),
            event.items if experiment.counts_items else (),
        )
