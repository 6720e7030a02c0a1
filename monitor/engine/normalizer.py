"""Decoded events → normalized events: hashes instead of most ids, an arm instead of names.

An event is normalized as soon as it is decoded, and its texts are released. A batch that kept them until it is applied
would be several times as large as the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from monitor.engine.experiment import Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import MISSING, NO_RESPONSE, Reaction, latency_of, reaction_of
from monitor.events import Feedback, Response


@final
class NormalizedResponse:
    """A response event as its row stores it; `monitor.engine.response_row` documents the attributes."""

    __slots__ = (
        "arm", "category", "item_ids", "items", "latency_ms", "name", "ranks", "student", "timestamp_ms",
        "undeclared_experiment",
    )  # fmt: skip

    def __init__(
        self,
        name: bytes,
        timestamp_ms: int,
        arm: int = NO_RESPONSE,
        student: bytes = b"",
        items: bytes = b"",
        ranks: tuple[int, ...] | None = None,
        latency_ms: int = MISSING,
        category: int = MISSING,
        item_ids: tuple[str, ...] = (),
        undeclared_experiment: str = "",
    ) -> None:
        self.name: Final = name
        """The stored id of the response."""
        self.timestamp_ms: Final = timestamp_ms
        self.arm: Final = arm
        """`NO_RESPONSE` if the response does not count: then the attributes that follow are unused."""
        self.student: Final = student
        self.items: Final = items
        self.ranks: Final = ranks
        self.latency_ms: Final = latency_ms
        self.category: Final = category
        self.item_ids: Final = item_ids
        """The items' ids if the experiment counts items, otherwise ()."""
        self.undeclared_experiment: Final = undeclared_experiment
        """The name of the experiment if the configuration does not declare it, otherwise ""."""


@final
class EventBatch:
    """The normalized events of one batch, in the order of their arrival."""

    __slots__ = ("reaction_targets", "reactions", "responses")

    def __init__(self) -> None:
        self.responses: list[NormalizedResponse] = []
        self.reactions: list[Reaction] = []
        self.reaction_targets: list[bytes] = []
        """For each reaction the stored id of its response."""


@final
class EventNormalizer:
    """Normalizes the events of the declared experiments."""

    def __init__(self, experiments: Sequence[Experiment], ids: IdHasher) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._ids = ids

    def append(self, batch: EventBatch, event: Response | Feedback) -> None:
        """Append an event to a batch."""
        if isinstance(event, Response):
            batch.responses.append(self._response(event))
        else:
            batch.reaction_targets.append(self._ids.response(event.response_id))
            batch.reactions.append(reaction_of(event, self._ids))

    def _response(self, event: Response) -> NormalizedResponse:
        ids = self._ids
        name, timestamp_ms = ids.response(event.response_id), event.timestamp_ms
        experiment = self._experiments.get(event.experiment)
        if experiment is None:
            return NormalizedResponse(name, timestamp_ms, undeclared_experiment=event.experiment)
        arm = experiment.arm_of(event.variant, timestamp_ms)
        if arm == NO_RESPONSE:
            return NormalizedResponse(name, timestamp_ms)
        return NormalizedResponse(
            name,
            timestamp_ms,
            arm,
            b"" if event.user_id is None else ids.student(event.user_id),
            ids.items(event.items),
            event.ranks,
            latency_of(event),
            experiment.category_of(event.category),
            event.items if experiment.counts_items else (),
        )
