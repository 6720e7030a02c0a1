"""Events from Kafka: initial offsets, lost records, ends of partitions, and consumers that stopped receiving.

Positions come from the store, never from the group's committed offsets. Records come from the client that
`kafka.client` names, as a member of the consumer group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable
from monitor.sources import confluent, kafka_python
from monitor.sources.consumer import Consumer, OffsetOutOfRange
from monitor.sources.dead_letter_queue import DeadLetters
from monitor.sources.kafka_connection import BEGINNING, END, Topic, Topics, unreachable
from monitor.sources.source import Gap, Kind, Refused, Slice
from monitor.state import Position

log = logging.getLogger(__name__)
_POLL_S: Final = 0.2
_IDLE_S: Final = 0.4
_ACKNOWLEDGE_EVERY_S: Final = 5.0
_PROBE_EVERY_S: Final = 3.0
_LOOK_EVERY_S: Final = 10.0
_STALLED_S: Final = 30.0
"""After this time without a record from a partition that has more, the consumer rejoins the group."""
_UNOWNED_S: Final = 10.0
"""Partitions without an owner for this time were left out of the assignment, or the rebalance does not end.
Rejoining also finds new partitions sooner, and costs nothing while another member's session times out."""
_BLOCKED_S: Final = 2.0


def client_version(settings: KafkaSettings) -> str:
    """Return the name and version of the configured client; raises `UsageError` if it is not installed."""
    return confluent.client_version() if settings.client == "confluent" else kafka_python.client_version()


def join(settings: KafkaSettings) -> Consumer:
    """Return a consumer of the configured client that has reached the cluster.

    Raises `UsageError` if the client is not installed, or it or the cluster refuses the settings, and
    `DependencyUnavailable` if nobody answers.
    """
    if settings.client == "confluent":
        return confluent.ConfluentConsumer(settings)
    return kafka_python.KafkaPythonConsumer(settings)


class KafkaSource:
    """Both topics of one cluster, as one member of the group."""

    def __init__(self, settings: KafkaSettings) -> None:
        client_version(settings)
        self._settings = settings
        self._kinds: dict[str, Kind] = {settings.responses_topic: "response", settings.feedback_topic: "feedback"}
        self.restarts = 0
        self._joined = False
        self._unplaced: set[str] = set()
        """Partitions to be sought; none of their records is handed out before."""
        self._idle = False
        """Whether all placed partitions are paused."""
        self._paused: set[str] = set()
        self._ends: dict[str, int] = {}
        self._handed: dict[str, int] = {}
        self._moved_at: dict[str, float] = {}
        self._acknowledged: dict[str, int] = {}
        self._applied: dict[str, int] = {}
        self._acknowledge_at = self._probe_at = self._look_at = self._ends_at = self._polled_at = 0.0
        self._owned_at = time.monotonic()
        self._trouble: str | None = None
        self._topics = Topics(settings)
        # The first connection is kafka-python's for either client: so both report a failure in the same words.
        self._described: Mapping[str, Topic] = self._topics.describe(list(self._kinds))
        self._consumer: Consumer = join(settings)
        self._consumer.subscribe(list(self._kinds), self._assigned)
        self._dead_letters = DeadLetters(settings)

    def _assigned(self, partitions: Collection[str]) -> None:
        """Have the partitions placed; one that was assigned before may have been read further than it was applied."""
        self._joined = True
        self._unplaced.update(partitions)

    def unplaced(self) -> Sequence[str]:
        return sorted(self._unplaced.copy() & set(self._consumer.assignment()))

    def joined(self) -> bool:
        return self._joined

    def own(self) -> Collection[str]:
        return self._consumer.assignment()

    def gaps(self, positions: Mapping[str, Position]) -> Sequence[Gap]:
        """Return history that is gone, a topic that is another one, a position that never was."""
        self._look()
        waiting = [name for name in self.unplaced() if name in positions]
        begins = self._topics.offsets(waiting, BEGINNING)
        gaps = []
        for name in waiting:
            position = positions[name]
            topic = self._described.get(_topic(name))
            begin, end = begins[name], self._ends.get(name, 0)
            lost = 0
            if topic is not None and position.topic and topic.identity != position.topic:
                reason = "the topic was deleted and created anew"
            elif position.next_offset < begin:
                lost = begin - position.next_offset
                reason = f"{lost} offsets from {position.next_offset} on are gone: Kafka begins at {begin}"
            elif position.next_offset > end:
                reason = f"Kafka ends at {end}, before the stored position {position.next_offset}"
            else:
                continue
            resume = position.entered("" if topic is None else topic.identity, begin)
            gaps.append(Gap(name, position, resume, lost, reason))
        return gaps

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """Return the offsets that `kafka.start` says; new partitions of a known topic are read from their beginning."""
        known = {_topic(name) for name in positions}
        starts: dict[str, Position] = {}
        for topic, described in self._described.items():
            new = [name for name in described.partitions if name not in positions]
            offsets = self._first_offsets(new, "earliest" if topic in known else self._settings.start)
            starts |= {name: Position.start(described.identity, offset) for name, offset in offsets.items()}
        return starts

    def place(self, positions: Mapping[str, Position]) -> None:
        offsets = {name: positions[name].next_offset for name in self.unplaced() if name in positions}
        self._handed |= offsets
        self._moved_at |= dict.fromkeys(offsets, time.monotonic())
        # In this order: a rebalance meanwhile has them placed again.
        self._unplaced.difference_update(offsets)
        self._consumer.seek(offsets)
        if not self._idle:
            self._consumer.resume(offsets.keys() - self._paused)

    def rewind(self) -> None:
        self._unplaced.update(self._consumer.assignment())

    def _first_offsets(self, partitions: Collection[str], start: str) -> Mapping[str, int]:
        if start == "earliest":
            return self._topics.offsets(partitions, BEGINNING)
        ends = self._topics.offsets(partitions, END)
        if start == "latest":
            return ends
        found = self._topics.offsets(partitions, int(datetime.fromisoformat(start).timestamp() * 1000))
        return {name: ends[name] if offset < 0 else offset for name, offset in found.items()}

    def poll(self, *, wait: bool = True) -> Sequence[Slice]:
        """Return the next records, those of responses before those of feedback."""
        now = time.monotonic()
        if now - self._polled_at > _BLOCKED_S:
            # Nobody asked for records meanwhile: that is no stall.
            self._moved_at |= dict.fromkeys(self._moved_at, now)
        self._polled_at = now
        if self._idle:
            self._idle = False
            self._consumer.resume(set(self._consumer.assignment()) - self._paused - self._unplaced)
        try:
            polled = self._consumer.poll(_POLL_S if wait else 0.0, self._settings.max_poll_records)
        except OffsetOutOfRange as error:
            # `gaps` and `place` come next.
            log.debug("partitions to be placed reason=%s", error)
            self.rewind()
            return []
        except AbMonitorError:
            self.rewind()
            raise
        slices = []
        for name, records in polled.items():
            if name in self._unplaced or name not in self._handed:
                continue
            following = records[-1].offset + 1
            begin, self._handed[name] = self._handed[name], following
            self._moved_at[name] = now
            slices.append(Slice(name, self._kinds[_topic(name)], begin, records, following))
        slices.sort(key=lambda part: part.kind != "response")
        return slices or self._passed_over()

    def _passed_over(self) -> list[Slice]:
        """Return slices without records where the position has moved past transaction markers or aborted records."""
        slices = []
        for name in set(self._consumer.assignment()) - self._unplaced:
            begin = self._handed.get(name)
            if begin is None or begin == self._ends.get(name):
                continue
            position = self._consumer.position(name)
            if position is not None and position > begin:
                self._handed[name] = position
                slices.append(Slice(name, self._kinds[_topic(name)], begin, [], position))
        return slices

    def hold(self, partitions: Collection[str]) -> None:
        paused = set(partitions)
        if paused == self._paused:
            return
        self._consumer.pause(paused - self._paused)
        if not self._idle:
            self._consumer.resume(self._paused - paused - self._unplaced)
        self._moved_at |= dict.fromkeys(self._paused - paused, time.monotonic())
        self._paused = paused

    def idle(self) -> None:
        if not self._idle:
            self._idle = True
            self._consumer.pause(self._consumer.assignment())
        try:
            if self._consumer.poll(_IDLE_S, 1):
                # All partitions are paused; should a client return a record nevertheless, it is read again.
                self.rewind()
        except (OffsetOutOfRange, DependencyUnavailable) as error:
            log.debug("poll while idle failed error=%s", error)
            self.rewind()
        now = time.monotonic()
        self._moved_at |= dict.fromkeys(self._moved_at, now)
        if now >= self._ends_at:
            # Nothing is fetched, so the fetches do not report the ends.
            self._ends_at = now + _PROBE_EVERY_S
            with suppress(DependencyUnavailable):
                self._see_ends()

    def ends(self) -> Mapping[str, int | None]:
        """Return the newest high-water marks seen of own partitions, and those of others as of seconds ago."""
        ends: dict[str, int | None] = dict(self._ends)
        fetched = self._consumer.end_offsets()
        for name in self._consumer.assignment():
            known = self._ends.get(name)
            ends[name] = max(fetched[name], known or 0) if name in fetched else known
        return ends

    def ask_ends(self) -> Mapping[str, int | None]:
        """Return the ends as they are now, also of partitions that were added since."""
        self._look()
        return self.ends()

    def trouble(self) -> str | None:
        """Return why nothing can arrive: no bootstrap server answers, or a topic is missing.

        Joins the group anew when no records arrive although there are some.
        """
        now = time.monotonic()
        if now < self._probe_at:
            return self._trouble
        self._probe_at = now + _PROBE_EVERY_S
        self._trouble = unreachable(self._settings)
        if self._trouble is None and now >= self._look_at:
            try:
                self._look()
                self._watch()
            except DependencyUnavailable as error:
                self._trouble = str(error)
                return self._trouble
        missing = [topic for topic in self._kinds if topic not in self._described]
        if self._trouble is None and missing:
            self._look_at = 0.0
            self._trouble = f"Kafka at {self._settings.bootstrap_servers}: no topic {', '.join(missing)}"
        return self._trouble

    def _look(self) -> None:
        """Learn which topics there are and where all their partitions end."""
        described = self._topics.describe(list(self._kinds))
        for name, topic in self._described.items():
            if name in described and described[name].identity != topic.identity:
                log.warning("topic was created anew topic=%s", name)
                self.rewind()
        self._described = described
        self._see_ends()
        self._look_at = time.monotonic() + _LOOK_EVERY_S

    def _see_ends(self) -> None:
        """Learn where all known partitions end."""
        partitions = [name for topic in self._described.values() for name in topic.partitions]
        if partitions:
            self._ends = self._topics.offsets(partitions, END)

    def _watch(self) -> None:
        """Join the group anew if a partition has been nobody's, or has more and gave no record, for long."""
        now = time.monotonic()
        everything = {name for topic in self._described.values() for name in topic.partitions}
        owned = self._topics.owned(self._settings.group_id)
        if owned is not None and everything <= owned:
            self._owned_at = now
        elif now - self._owned_at > _UNOWNED_S:
            nobodys = "not settled" if owned is None else ",".join(sorted(everything - owned))
            log.warning("partitions are no member's: joining the group anew partitions=%s", nobodys)
            self._rejoin()
            return
        for name in set(self._consumer.assignment()) - self._paused - self._unplaced:
            behind = self._ends.get(name, 0) - self._handed.get(name, 0)
            if behind <= 0:
                self._moved_at[name] = now
            elif now - self._moved_at.get(name, now) > _STALLED_S:
                log.warning(
                    "nothing arrives although there is more: joining the group anew partition=%s behind=%d",
                    name,
                    behind,
                )
                self._rejoin()
                return

    def _rejoin(self) -> None:
        # The consumer is only replaced when another has reached the cluster.
        consumer = join(self._settings)
        self.restarts += 1
        self._consumer.close({})
        self._consumer = consumer
        self._joined = self._idle = False
        self._paused = set()
        self._unplaced.clear()
        self._moved_at.clear()
        self._owned_at = time.monotonic()
        consumer.subscribe(list(self._kinds), self._assigned)

    def finished(self) -> bool:
        return False

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """Commit to the group every few seconds, without waiting."""
        self._applied |= offsets
        now = time.monotonic()
        if now < self._acknowledge_at:
            return
        self._acknowledge_at = now + _ACKNOWLEDGE_EVERY_S
        commit = self._unacknowledged()
        if commit:
            self._consumer.commit_group_offsets(commit)

    def _unacknowledged(self) -> dict[str, int]:
        owned = self._consumer.assignment()
        commit = {
            name: offset
            for name, offset in self._applied.items()
            if name in owned and self._acknowledged.get(name) != offset
        }
        self._acknowledged |= self._applied
        return commit

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        self._dead_letters.keep(refused)

    def close(self) -> None:
        self._dead_letters.close()
        self._topics.close()
        self._consumer.close(self._unacknowledged() if self._trouble is None else {})


def _topic(partition: str) -> str:
    return partition.rpartition(":")[0]
