"""What a rebuilt generation lacks of the live one, by the offsets where Kafka begins.

Counts cannot say that: new events and wider definitions hide what is missing, narrower ones look like a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from monitor.attribution import DAY_MS
from monitor.config import KafkaSettings
from monitor.ingest.connection import BEGINNING, Topics
from monitor.store import Position, Shards
from monitor.store.generations import first_day, lost_events
from monitor.store.keys import BEFORE
from monitor.store.opening import stored_experiments

_CLOCKS_MS: Final = 3_600_000
"""How far a record's time may be behind its event's: producers' clocks differ."""
_EVER: Final = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets of a partition that the live generation has read and the rebuilt one has not, at most."""

    partition: str
    offsets: int
    first: int
    """Where the live one began."""
    begin: int
    """Where Kafka begins now."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: {self.offsets} offsets that the live generation has read are gone: it began at "
            f"{self.first}, Kafka begins at {self.begin}"
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """What is to be decided about, and what is to be counted."""

    missing: list[Missing]
    lost: Mapping[str, int]
    """What the new generation has to count as lost (see `Keys`) besides what it has lost itself."""
    there_again: int
    """Events that the live one had lost, and their topics, created anew, have by their number."""
    unknown: bool
    """Whether the live one has read something that offsets say nothing of: another log, files, an older store."""


def losses(settings: KafkaSettings, live: Shards, building: Shards) -> Losses:
    """Compare where both generations began; raises `DependencyUnavailable`."""
    held, own = live.positions(), building.positions()
    lost, own_lost = lost_events(live), lost_events(building)
    same = {name: each.first or 0 for name, each in held.items() if name in own and _one_log(each, own[name])}
    begins, older = _beginnings(settings, same, _first_ms(live, building))
    missing, counted, there_again = [], Counter[str](), 0
    for name, first in same.items():
        begin, before = min(own[name].first or 0, begins[name]), lost.get(BEFORE + name, 0)
        known = lost.get(name, 0) + before
        gone = begin - first + before
        # Where nothing that counts is gone, nobody knows that of what was lost.
        counted[BEFORE + name] = min(gone, known) if name in older else gone
        offsets = min(begin, held[name].next_offset) - first + before - known + own_lost.get(name, 0)
        if offsets > 0 and name not in older:
            missing.append(Missing(name, offsets, first, begin))
    for field, count in lost.items():
        name = field.removeprefix(BEFORE)
        if name in same:
            continue
        if name in held and _there_again(name, held, own):
            there_again += count
        else:
            counted[BEFORE + name if name in held else field] += count
    unknown = any(name not in same and (each.next_offset != each.first or name in lost) for name, each in held.items())
    return Losses(missing, {name: count for name, count in counted.items() if count > 0}, there_again, unknown)


def _one_log(held: Position, own: Position) -> bool:
    """Return whether two positions are of the same log, and it is known of both where they began."""
    return held.topic != "" and held.topic == own.topic and held.first is not None and own.first is not None


def _there_again(name: str, held: Mapping[str, Position], own: Mapping[str, Position]) -> bool:
    """Return whether a partition's topic, created anew, has as many events as the live generation had read and lost."""
    before, now = _read(name, held), _read(name, own)
    return before is not None and now is not None and now >= before


def _read(name: str, positions: Mapping[str, Position]) -> int | None:
    """Return how many offsets of a partition's topic there are up to the positions; None if that is not known."""
    topic = name.rpartition(":")[0]
    own = [(each.first, each.next_offset) for other, each in positions.items() if other.rpartition(":")[0] == topic]
    return None if any(first is None for first, _ in own) else sum(end - (first or 0) for first, end in own)


def _first_ms(live: Shards, building: Shards) -> int | None:
    """Return a time before the first event that counts in the live one, of what both have; None if there is none."""
    stored, wanted = stored_experiments(live), stored_experiments(building)
    definitions = [each["definitions"] for name, each in stored.items() if name in wanted]
    times = [each["starts_at_ms"] - each["pre_period_ms"] for each in definitions if each.get("pre_period_ms")]
    day = first_day(live, wanted.keys())
    times += [] if day is None else [day * DAY_MS]
    return max(min(times) - _CLOCKS_MS, _EVER) if times else None


def _beginnings(
    settings: KafkaSettings, partitions: Collection[str], since_ms: int | None
) -> tuple[Mapping[str, int], Collection[str]]:
    """Return where partitions begin, and those of them that still have a record from before that time.

    There retention has taken nothing that is as late.
    """
    topics = Topics(settings)
    try:
        begins = topics.offsets(partitions, BEGINNING)
        if since_ms is None:
            return begins, partitions
        oldest, since = topics.offsets(partitions, _EVER), topics.offsets(partitions, since_ms)
    finally:
        topics.close()
    return begins, {name for name in partitions if _older(begins[name], oldest[name], since[name])}


def _older(begin: int, oldest: int, since: int) -> bool:
    """Return whether a record lies before the first one since a time, of which there may be none (-1).

    Brokers say -1, too, where that would be in what was deleted of a segment: then they do not find the oldest either.
    """
    return since > max(begin, oldest) or (since < 0 <= oldest)
