"""Events from Kafka, on kafka-python's consumer.

Positions come from the store, never from the group's committed offsets. Callbacks of a rebalance run on the client's
I/O thread, where only pausing is safe: they pause new partitions and note them, and the loop places them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata

from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.ingest.connection import BOOTSTRAP_MS, Topic, Topics, connection_options, refused, unreachable
from monitor.ingest.dead_letters import DeadLetters
from monitor.ingest.membership import Rebalances, partition_name, partition_of
from monitor.ingest.probing import explained
from monitor.ingest.source import Gap, Kind, Refused, Slice
from monitor.store import Position

log = logging.getLogger(__name__)
_POLL_MS: Final = 200
_GONE: Final = (ValueError, KeyError, AssertionError, IllegalStateError)
"""What the client raises about a partition that a rebalance has just taken away."""
_SESSION_MS: Final = 10_000
"""After so long without a heartbeat a worker's partitions go to the others: heartbeats have a thread of their own, so a
longer time (45 s by default) would only prolong the gap after a crash."""
_METADATA_MS: Final = 15_000
"""So soon new partitions are noticed (the default is five minutes)."""
_RECONNECT_MS: Final = 2_000
_CLOSE_MS: Final = 5_000
_ACKNOWLEDGE_EVERY_S: Final = 5.0
_PROBE_EVERY_S: Final = 3.0
_LOOK_EVERY_S: Final = 10.0
_STALLED_S: Final = 30.0
"""Without a record for so long from a partition that has more, the consumer is taken to be stuck."""
_BLOCKED_S: Final = 2.0


class KafkaSource:
    """Both topics of one cluster, as one member of the group."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._kinds: dict[str, Kind] = {settings.responses_topic: "response", settings.feedback_topic: "feedback"}
        self.restarts = 0
        self._held: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        self._handed: dict[TopicPartition, int] = {}
        self._moved_at: dict[TopicPartition, float] = {}
        self._records: Mapping[TopicPartition, Sequence[Any]] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        self._applied: dict[TopicPartition, int] = {}
        self._acknowledge_at = self._probe_at = self._look_at = self._polled_at = 0.0
        self._trouble: str | None = None
        self._topics = Topics(settings)
        self._described: Mapping[str, Topic] = {}
        self._join()
        self._dead_letters = DeadLetters(settings)

    def _join(self) -> None:
        """Become a member of the group, with nothing assigned yet."""
        try:
            self._consumer = KafkaConsumer(
                **connection_options(self._settings),
                group_id=self._settings.group_id,
                group_instance_id=self._settings.group_instance_id,
                session_timeout_ms=_SESSION_MS,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                partition_assignment_strategy=(RangePartitionAssignor,),
                max_poll_records=self._settings.max_poll_records,
                allow_auto_create_topics=False,
                metadata_max_age_ms=_METADATA_MS,
                reconnect_backoff_max_ms=_RECONNECT_MS,
                bootstrap_timeout_ms=BOOTSTRAP_MS,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise explained(self._settings, connection_options(self._settings), error) from error
        self._rebalances = Rebalances(self._consumer)
        self._consumer.subscribe(topics=list(self._kinds), listener=self._rebalances)

    def unplaced(self) -> Sequence[str]:
        """See `Source`."""
        return [partition_name(each) for each in self._waiting()]

    def joined(self) -> bool:
        """See `Source`."""
        return self._rebalances.joined

    def own(self) -> Collection[str]:
        """See `Source`."""
        return [partition_name(each) for each in self._consumer.assignment()]

    def _waiting(self) -> list[TopicPartition]:
        return sorted(self._rebalances.unplaced.copy() & set(self._consumer.assignment()))

    def gaps(self, positions: Mapping[str, Position], furthest: Mapping[str, int]) -> Sequence[Gap]:
        """See `Source`: history that is gone, a topic that is another one, a position that never was."""
        self._look()
        waiting = [each for each in self._waiting() if partition_name(each) in positions]
        if not waiting:
            return []
        begins = self._offsets("beginning_offsets", waiting)
        gaps = []
        for each in waiting:
            name, position = partition_name(each), positions[partition_name(each)]
            topic = self._described.get(each.topic)
            begin, end = begins[each], self._ends.get(each, 0)
            lost = 0
            if topic is not None and position.topic and topic.identity != position.topic:
                reason = "the topic was deleted and created anew"
            elif position.next_offset < begin:
                lost = begin - position.next_offset
                reason = f"{lost} offsets from {position.next_offset} on are gone: Kafka begins at {begin}"
            elif (held := furthest.get(name, position.next_offset)) > end:
                reason = f"Kafka ends at {end}, before the stored position {held}"
            else:
                continue
            resume = position.entered("" if topic is None else topic.identity, begin)
            gaps.append(Gap(name, position, resume, lost, reason))
        return gaps

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """See `Source`: where `kafka.start` says; partitions added to a known topic are read from their beginning."""
        known = {name.rpartition(":")[0] for name in positions}
        starts = {}
        for name, topic in self._described.items():
            partitions = [TopicPartition(name, number) for number in range(topic.partitions)]
            new = [each for each in partitions if partition_name(each) not in positions]
            offsets = self._first_offsets(new, "earliest" if name in known else self._settings.start)
            for each, offset in offsets.items():
                starts[partition_name(each)] = Position.start(topic.identity, offset)
        return starts

    def place(self, positions: Mapping[str, Position]) -> None:
        """See `Source`."""
        now = time.monotonic()
        for partition in self._waiting():
            position = positions.get(partition_name(partition))
            if position is None:
                continue
            self._handed[partition] = position.next_offset
            self._moved_at[partition] = now
            # A partition that went to another worker meanwhile is not ours to place.
            with suppress(*_GONE):
                self._consumer.seek(partition, position.next_offset)
                if partition not in self._held:
                    self._consumer.resume(partition)
            self._rebalances.unplaced.discard(partition)

    def rewind(self) -> None:
        """See `Source`."""
        assigned = self._consumer.assignment()
        with suppress(*_GONE):
            self._consumer.pause(*assigned)
        self._rebalances.unplaced |= set(assigned)

    def _first_offsets(self, partitions: list[TopicPartition], start: str) -> Mapping[TopicPartition, int]:
        if not partitions:
            return {}
        if start == "earliest":
            return self._offsets("beginning_offsets", partitions)
        ends = self._offsets("end_offsets", partitions)
        if start == "latest":
            return ends
        since_ms = int(datetime.fromisoformat(start).timestamp() * 1000)
        try:
            found = self._consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        except KafkaError as error:
            raise refused(self._settings, error) from error
        return {each: found[each].offset if found.get(each) else ends[each] for each in partitions}

    def _offsets(self, which: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return dict(getattr(self._consumer, which)(partitions))
        except KafkaError as error:
            raise refused(self._settings, error) from error
        except KeyError as error:
            # The client raises it of partitions that have just been created.
            raise DependencyUnavailable(f"Kafka says nothing yet of partition {error}") from error

    def poll(self) -> Sequence[Slice]:
        """See `Source`; slices of responses come before those of feedback."""
        now = time.monotonic()
        if now - self._polled_at > _BLOCKED_S:
            # Nobody asked for records meanwhile: that is no stall.
            self._moved_at |= dict.fromkeys(self._moved_at, now)
        self._polled_at = now
        fetcher = self._consumer._fetcher  # noqa: SLF001
        if not fetcher._next_partition_records:  # noqa: SLF001
            # kafka-python 3.0.12 returns to the records that it keeps of a paused partition only when no partition is
            # in line, and one that is drained stays in line: resumed partitions might never be read again.
            fetcher._next_partition_records = None  # noqa: SLF001
        try:
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError, LogTruncationError) as error:
            # Just assigned, or no longer there: `gaps` and `place` come next.
            log.debug("partitions to be placed reason=%s", error)
            self.rewind()
            return []
        except KafkaError as error:
            raise refused(self._settings, error) from error
        slices = []
        for partition, records in polled.items():
            if partition in self._rebalances.unplaced:
                continue
            begin, self._handed[partition] = self._handed[partition], records[-1].offset + 1
            self._moved_at[partition] = now
            slices.append(
                Slice(
                    partition_name(partition),
                    self._kinds[partition.topic],
                    begin,
                    [record.offset for record in records],
                    [record.value for record in records],
                    records[-1].offset + 1,
                )
            )
        self._records = polled
        slices.sort(key=lambda each: each.kind != "response")
        return slices or self._passed_over()

    def _passed_over(self) -> list[Slice]:
        """Return slices without records where the position has moved past what transactions leave in the log."""
        slices = []
        for partition in self._consumer.assignment():
            if partition in self._rebalances.unplaced or self._handed.get(partition) == self._ends.get(partition):
                continue
            with suppress(KafkaError, *_GONE):
                reached = self._consumer.position(partition, timeout_ms=0)
                begin = self._handed[partition]
                if reached is not None and reached > begin:
                    self._handed[partition] = reached
                    slices.append(
                        Slice(partition_name(partition), self._kinds[partition.topic], begin, (), (), reached)
                    )
        return slices

    def hold(self, partitions: Collection[str]) -> None:
        """See `Source`."""
        held = {partition_of(name) for name in partitions}
        if held == self._held:
            return
        assigned = self._consumer.assignment()
        with suppress(*_GONE):
            self._consumer.pause(*(held & assigned))
            self._consumer.resume(*((self._held - held) & assigned - self._rebalances.unplaced))
        now = time.monotonic()
        self._moved_at |= dict.fromkeys(self._held - held, now)
        self._held = held

    def idle(self) -> None:
        """See `Source`: poll with everything paused, so that the group keeps this member."""
        assigned = self._consumer.assignment()
        paused = [each for each in assigned if each not in self._consumer.paused()]
        with suppress(*_GONE):
            self._consumer.pause(*paused)
        try:
            self._consumer.poll(timeout_ms=_POLL_MS)
        except KafkaError as error:
            log.debug("poll while waiting failed error=%s", error)
        time.sleep(_POLL_MS / 1000)
        still = [each for each in paused if each in self._consumer.assignment()]
        with suppress(*_GONE):
            self._consumer.resume(*[each for each in still if each not in self._rebalances.unplaced])
        self._moved_at |= dict.fromkeys(self._moved_at, time.monotonic())

    def ends(self) -> Mapping[str, int | None]:
        """See `Source`: of own partitions the newest high-water marks seen, of others what they were seconds ago."""
        ends: dict[str, int | None] = {partition_name(each): end for each, end in self._ends.items()}
        for partition in self._consumer.assignment():
            mark = None
            with suppress(*_GONE):
                mark = self._consumer.highwater(partition)
            known = self._ends.get(partition)
            ends[partition_name(partition)] = known if mark is None else max(mark, known or 0)
        return ends

    def trouble(self) -> str | None:
        """See `Source`: whether a bootstrap server answers and the topics are there.

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
            except DependencyUnavailable as error:
                self._trouble = str(error)
                return self._trouble
            self._watch()
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
        partitions = [TopicPartition(name, n) for name, topic in described.items() for n in range(topic.partitions)]
        if partitions:
            self._ends = self._offsets("end_offsets", partitions)
        self._look_at = time.monotonic() + _LOOK_EVERY_S

    def _watch(self) -> None:
        """Join the group anew if a partition that has more has not given any record for long."""
        now = time.monotonic()
        for partition in self._consumer.assignment():
            if partition in self._held or partition in self._rebalances.unplaced:
                continue
            behind = self._ends.get(partition, 0) - self._handed.get(partition, 0)
            if behind <= 0:
                self._moved_at[partition] = now
            elif now - self._moved_at.get(partition, now) > _STALLED_S:
                log.warning(
                    "nothing arrives although there is more: joining the group anew partition=%s behind=%d",
                    partition_name(partition),
                    behind,
                )
                self.restarts += 1
                self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)
                self._held = set()
                self._moved_at.clear()
                self._join()
                return

    def finished(self) -> bool:
        """See `Source`: never."""
        return False

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """See `Source`: commit to the group every few seconds, without waiting."""
        self._applied |= {partition_of(name): offset for name, offset in offsets.items()}
        now = time.monotonic()
        if now < self._acknowledge_at:
            return
        self._acknowledge_at = now + _ACKNOWLEDGE_EVERY_S
        commit = self._unacknowledged()
        if commit:
            self._consumer.commit_async(commit)

    def _unacknowledged(self) -> dict[TopicPartition, OffsetAndMetadata]:
        owned = self._consumer.assignment()
        commit = {
            partition: OffsetAndMetadata(offset, "", -1)
            for partition, offset in self._applied.items()
            if partition in owned and self._acknowledged.get(partition) != offset
        }
        self._acknowledged |= self._applied
        return commit

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """See `Source`: in the dead-letter topic."""
        keys = {
            (partition_name(partition), record.offset): record.key
            for partition, records in self._records.items()
            for record in records
        }
        self._dead_letters.keep([(each, keys.get((each.partition, each.offset))) for each in refused])

    def close(self) -> None:
        """See `Source`."""
        self._dead_letters.close()
        self._topics.close()
        with suppress(KafkaError):
            commit = self._unacknowledged()
            if commit and self._trouble is None:
                self._consumer.commit(commit, timeout_ms=_CLOSE_MS)
        self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)
