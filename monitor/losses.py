"""What a rebuilt generation lacks of the live one, by the offsets where both began.

Counts cannot say that: new events and wider definitions hide what is missing, narrower ones look like a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from monitor.clock import DAY_MS
from monitor.config import KafkaSettings
from monitor.ingest.connection import BEGINNING, Topics
from monitor.store import Shards
from monitor.store.generations import first_day, lost_events
from monitor.store.keys import BEFORE
from monitor.store.opening import stored_experiments

_CLOCKS_MS: Final = 3_600_000
"""How far a record's time may be behind its event's: producers' clocks differ."""
_EVER: Final = 0


@dataclass(frozen=True, slots=True)
class Losses:
    """What is to be decided about, and what is to be counted."""

    missing: list[str]
    """What the live generation has read and the new one has not, or may not have: a sentence for each partition."""
    lost: Mapping[str, int]
    """What the new generation has to count as lost (see `Keys`) besides what it has lost itself."""
    unknown: bool
    """Whether the live one has read something that offsets say nothing of: another log, files, an older store."""


def losses(settings: KafkaSettings, live: Shards, building: Shards) -> Losses:
    """Compare where both generations began; raises `DependencyUnavailable`."""
    held, own = live.positions(), building.positions()
    same = {
        name: (first, begin)
        for name, each in held.items()
        if name in own and each.topic and each.topic == own[name].topic
        for first, begin in [(each.first, own[name].first)]
        if first is not None and begin is not None
    }
    lost, crossed = lost_events(live), lost_events(building)
    older = _older_partitions(settings, same, _first_ms(live, building))
    missing, counted = [], Counter[str]()
    for name, (first, begin) in same.items():
        before = lost.get(BEFORE + name, 0)
        gone, known = begin - first + before, lost.get(name, 0) + before
        # Where nothing that counts is gone, nobody knows that of what was lost.
        counted[BEFORE + name] = min(gone, known) if name in older else gone
        offsets = min(begin, held[name].next_offset) - first - lost.get(name, 0)
        if offsets > 0 and name not in older:
            missing.append(
                f"{name}: {offsets} offsets that the live generation has read are not there: it began at {first}, a "
                f"rebuild begins at {begin}"
            )
        if name in crossed:
            missing.append(f"{name}: {crossed[name]} offsets went while the new generation was read")
    unknown = bool(own.keys() - held.keys()) or any(
        name not in same and (each.next_offset != each.first or name in lost) for name, each in held.items()
    )
    experiments = stored_experiments(building)
    for field, count in lost.items():
        name, arm = field.removeprefix(BEFORE), "/" in field
        # Responses that were missing by their number are missing no more where offsets tell everything.
        if (unknown and name.rpartition("/")[0] in experiments) if arm else name not in same:
            counted[BEFORE + name if name in held else field] += count
    return Losses(missing, {name: count for name, count in counted.items() if count > 0}, unknown)


def _first_ms(live: Shards, building: Shards) -> int | None:
    """Return a time before the first event that counts in the live one, of what both have; None if there is none."""
    stored, wanted = stored_experiments(live), stored_experiments(building)
    definitions = [each["definitions"] for name, each in stored.items() if name in wanted]
    times = [each["starts_at_ms"] - each["pre_period_ms"] for each in definitions if each.get("pre_period_ms")]
    day = first_day(live, wanted.keys())
    times += [] if day is None else [day * DAY_MS]
    return max(min(times) - _CLOCKS_MS, _EVER) if times else None


def _older_partitions(settings: KafkaSettings, partitions: Collection[str], since_ms: int | None) -> Collection[str]:
    """Return the partitions that still have a record from before that time: retention took nothing that is as late."""
    if since_ms is None:
        return partitions
    topics = Topics(settings)
    try:
        begins, oldest, since = (topics.offsets(partitions, at) for at in (BEGINNING, _EVER, since_ms))
    finally:
        topics.close()
    return {name for name in partitions if _older(begins[name], oldest[name], since[name])}


def _older(begin: int, oldest: int, since: int) -> bool:
    """Return whether a record lies before the first one since a time, of which there may be none (-1).

    Brokers say -1, too, where that would be in what was deleted of a segment: then they do not find the oldest either.
    """
    return since > max(begin, oldest) or (since < 0 <= oldest)
