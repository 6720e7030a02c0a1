"""The normalizer of decoded events: hashes replace ids, and a variant key replaces the names of experiment and variant.

An event is normalized as soon as it is decoded, so that its strings are freed. A batch of decoded events would need
several times the memory of the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from monitor.engine.exclusion_rules import response_field
from monitor.engine.experiment import Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import MISSING, NO_RESPONSE, Reaction, reaction_from_feedback, rounded_latency_ms
from monitor.events import Feedback, Response


@final
class NormalizedResponse:
    """A response event with the attributes of a `ResponseRow`."""

    __slots__ = (
        "category",
        "delay_ms",
        "is_excluded",
        "item_hashes",
        "item_ids",
        "latency_ms",
        "ranks",
        "session",
        "stored_id",
        "student_hash",
        "timestamp_ms",
        "undeclared_experiment",
        "undeclared_variant",
        "variant_key",
    )

    def __init__(
        self,
        stored_id: bytes,
        timestamp_ms: int,
        variant_key: int = NO_RESPONSE,
        student_hash: bytes = b"",
        item_hashes: bytes = b"",
        ranks: tuple[int, ...] | None = None,
        latency_ms: int = MISSING,
        category: int = MISSING,
        item_ids: tuple[str, ...] = (),
        undeclared_experiment: str = "",
        undeclared_variant: str = "",
        delay_ms: int = MISSING,
        session: int = MISSING,
        is_excluded: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.stored_id: Final = stored_id
        """See `IdHasher.stored_response_id`."""
        self.timestamp_ms: Final = timestamp_ms
        self.variant_key: Final = variant_key
        """`NO_RESPONSE` if the response does not count. Student, items, ranks, latency and category are then unused."""
        self.student_hash: Final = student_hash
        self.item_hashes: Final = item_hashes
        self.ranks: Final = ranks
        self.latency_ms: Final = latency_ms
        self.category: Final = category
        self.item_ids: Final = item_ids
        """Ids of the items; () if the experiment does not count items."""
        self.session: Final = session
        """Hash of the session; `MISSING` without a session, or if no metric of the experiment is per session."""
        self.undeclared_experiment: Final = undeclared_experiment
        """Name of the experiment if the configuration does not declare the experiment, otherwise ""."""
        self.undeclared_variant: Final = undeclared_variant
        """Name of the variant of an undeclared experiment, otherwise ""."""
        self.delay_ms: Final = delay_ms
        """Time from the event to the record's timestamp, at least 0; `MISSING` if the record has no timestamp."""
        self.is_excluded: Final = is_excluded
        """Whether the variant is that of an excluded response."""


@final
class EventBatch:
    """The normalized events of a batch, in order of arrival."""

    __slots__ = (
        "placeholder_users",
        "reaction_delays_ms",
        "reactions",
        "rejected_responses",
        "repeated_items",
        "responses",
        "target_response_ids",
        "undeclared_variants",
    )

    def __init__(self) -> None:
        self.responses: list[NormalizedResponse] = []
        self.reactions: list[Reaction] = []
        self.reaction_delays_ms: list[int] = []
        """For each reaction, the time from the event to the record's timestamp: see `NormalizedResponse.delay_ms`."""
        self.target_response_ids: list[bytes] = []
        """For each reaction, the stored id of its response."""
        self.rejected_responses: dict[tuple[int, str], int] = {}
        """(variant key, reason of the rejection) → responses of a declared variant that were rejected."""
        self.undeclared_variants: dict[tuple[int, str], int] = {}
        """(experiment number, name of an undeclared variant) → its responses, valid or rejected."""
        self.placeholder_users: dict[int, int] = {}
        """Variant key → responses with a placeholder instead of a user id."""
        self.repeated_items: dict[int, int] = {}
        """Variant key → responses with an item more than once."""


@final
class EventNormalizer:
    """Normalizes events; responses of undeclared experiments keep only id, time and names."""

    def __init__(self, experiments: Sequence[Experiment], ids: IdHasher) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._ids = ids

    def append_event(self, batch: EventBatch, event: Response | Feedback, record_ms: int | None = None) -> None:
        """Append an event to a batch; `record_ms` is the timestamp of the event's record."""
        delay_ms = MISSING if record_ms is None or record_ms < 0 else max(record_ms - event.timestamp_ms, 0)
        if isinstance(event, Response):
            response = self._normalize_response(event, delay_ms)
            batch.responses.append(response)
            if response.variant_key == NO_RESPONSE:
                self._count_undeclared_variant(batch, event.experiment, event.variant, event.timestamp_ms)
                return
            variant_key = response.variant_key
            if response.is_excluded:
                return
            if event.has_placeholder_user:
                batch.placeholder_users[variant_key] = batch.placeholder_users.get(variant_key, 0) + 1
            if event.has_repeated_items:
                batch.repeated_items[variant_key] = batch.repeated_items.get(variant_key, 0) + 1
        else:
            batch.reaction_delays_ms.append(delay_ms)
            batch.target_response_ids.append(self._ids.stored_response_id(event.response_id))
            batch.reactions.append(reaction_from_feedback(event, self._ids))

    def count_rejected_response(
        self, batch: EventBatch, experiment_name: str, variant: str, timestamp_ms: int | None, reason: str
    ) -> None:
        """Count a rejected response of the experiment's period by variant and reason; a time of None is unknown."""
        experiment = self._experiments.get(experiment_name)
        if experiment is None:
            return
        variant_key = experiment.variant_keys.get(variant, NO_RESPONSE)
        if variant_key == NO_RESPONSE:
            self._count_undeclared_variant(batch, experiment_name, variant, timestamp_ms)
        elif timestamp_ms is None or experiment.starts_at_ms <= timestamp_ms < experiment.ends_at_ms:
            key = variant_key, reason
            batch.rejected_responses[key] = batch.rejected_responses.get(key, 0) + 1

    def _count_undeclared_variant(
        self, batch: EventBatch, experiment_name: str, variant: str, timestamp_ms: int | None
    ) -> None:
        """Count a response of a declared experiment and an undeclared variant, within the experiment's period."""
        experiment = self._experiments.get(experiment_name)
        if experiment is None or variant in experiment.variant_keys:
            return
        if timestamp_ms is None or experiment.starts_at_ms <= timestamp_ms < experiment.ends_at_ms:
            key = experiment.number, variant
            batch.undeclared_variants[key] = batch.undeclared_variants.get(key, 0) + 1

    def _normalize_response(self, event: Response, delay_ms: int) -> NormalizedResponse:
        ids = self._ids
        stored_id, timestamp_ms = ids.stored_response_id(event.response_id), event.timestamp_ms
        experiment = self._experiments.get(event.experiment)
        if experiment is None:
            return NormalizedResponse(
                stored_id, timestamp_ms, undeclared_experiment=event.experiment, undeclared_variant=event.variant
            )
        variant_key = experiment.find_variant_key(event.variant, timestamp_ms)
        if variant_key == NO_RESPONSE:
            return NormalizedResponse(stored_id, timestamp_ms)
        is_excluded = event.is_excluded or experiment.exclusion_rules.match(event)
        if is_excluded:
            variant_key = experiment.excluded_variant_key(variant_key)
            if variant_key == NO_RESPONSE:
                return NormalizedResponse(stored_id, timestamp_ms)
        unit_id = response_field(event, experiment.unit_field)
        student_hash = b""
        if unit_id is not None:
            student_hash = ids.hash_excluded_student(unit_id) if is_excluded else ids.hash_student(unit_id)
        return NormalizedResponse(
            stored_id,
            timestamp_ms,
            variant_key,
            student_hash,
            ids.hash_items(event.items),
            event.ranks,
            rounded_latency_ms(event),
            experiment.category_index(event.category),
            event.items if experiment.counts_items and not is_excluded else (),
            delay_ms=delay_ms,
            session=ids.hash_session(event.session_id)
            if experiment.uses_sessions and event.session_id is not None
            else MISSING,
            is_excluded=is_excluded,
        )
