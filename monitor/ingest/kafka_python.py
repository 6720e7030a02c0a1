"""A member of the group on kafka-python's consumer: pure Python, and always installed.

Callbacks of a rebalance run on the client's I/O thread, where only pausing is safe: they pause new partitions and note
them, and the loop places them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import kafka
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
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
from monitor.ingest.connection import BOOTSTRAP_MS, admission, refused
from monitor.ingest.membership import (
    CLOSE_MS,
    FETCH_MS,
    METADATA_MS,
    POLL_MS,
    RECONNECT_MS,
    SESSION_MS,
    Displaced,
    Fetched,
    partition_name,
    partition_of,
)
from monitor.ingest.probing import explained
from monitor.ingest.records import Records
from monitor.ingest.unpacked import KNOWN, Unpacked

log = logging.getLogger(__name__)
_FETCH_BYTES: Final = 3 << 20
"""Of all partitions that a broker is asked for at once, as they are stored: kafka-python has each fetch in memory five
times while it reads it."""
_ROUND_BYTES: Final = 8 << 20
"""Shared out among the partitions, at least a megabyte for each: where there are few, more of each at once."""
_LEAST_BYTES: Final = 1 << 20
_MORE_MS: Final = 20
_FULL_S: Final = 0.25
"""So long a batch waits for the next fetch, and for all that it takes to be full, where more is known to be there."""
_LEARN_S: Final = 1.0
_LEARN_TIMES: Final = 100
_GONE: Final = (ValueError, KeyError, AssertionError, IllegalStateError)
"""What the client raises about a partition that a rebalance has just taken away."""


def client_version() -> str:
    """Return the name and version of the client."""
    return f"kafka-python {kafka.__version__}"


class KafkaPythonMember:
    """See `Member`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._held: set[TopicPartition] = set()
        self._taken: dict[TopicPartition, Records] = {}
        """What the poll at hand has brought."""
        self._failed: KafkaError | None = None
        options = admission(settings)
        try:
            self._consumer = KafkaConsumer(
                **options,
                group_id=settings.group_id,
                group_instance_id=settings.group_instance_id,
                session_timeout_ms=SESSION_MS,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                partition_assignment_strategy=(RangePartitionAssignor,),
                max_poll_records=settings.max_poll_records,
                allow_auto_create_topics=False,
                fetch_max_wait_ms=FETCH_MS,
                fetch_max_bytes=_FETCH_BYTES,
                metadata_max_age_ms=METADATA_MS,
                reconnect_backoff_max_ms=RECONNECT_MS,
                bootstrap_timeout_ms=BOOTSTRAP_MS,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise explained(settings, options, error) from error
        self._unpacks = kafka.__version__ == KNOWN
        if self._unpacks:
            self._consumer._fetcher.PartitionRecords = partial(Unpacked, self._taken)  # noqa: SLF001
            network = self._consumer._net  # noqa: SLF001
            network.run = _unbound(network.run)
        else:
            log.info("%s unpacks records itself, which takes longer than with %s", client_version(), KNOWN)
        self._rebalances = _Rebalances(self._consumer)
        topics = [settings.responses_topic, settings.feedback_topic]
        self._consumer.subscribe(topics=topics, listener=self._rebalances)
        self._learn(topics)

    def _learn(self, topics: Collection[str]) -> None:
        """Wait a moment for the partitions of the topics, unless they are not there.

        kafka-python 3.0.12 joins the group before it knows them. As the group's leader it then shares out nothing, and
        depends on noticing so afterwards.
        """
        cluster = self._consumer._cluster  # noqa: SLF001
        for attempt in range(_LEARN_TIMES):
            if all(map(cluster.partitions_for_topic, topics)):
                return
            if attempt and not attempt % 10:
                # An answer that was on its way since before the subscription has counted as the one asked for.
                cluster.request_update()
            time.sleep(_LEARN_S / _LEARN_TIMES)
        log.info("joining the group without having heard of the partitions topics=%s", ",".join(topics))

    def joined(self) -> bool:
        """See `Member`."""
        return self._rebalances.joined

    def assigned(self) -> Collection[str]:
        """See `Member`."""
        return {partition_name(each) for each in self._consumer.assignment()}

    def unplaced(self) -> Sequence[str]:
        """See `Member`."""
        waiting = self._rebalances.unplaced.copy() & set(self._consumer.assignment())
        return [partition_name(each) for each in sorted(waiting)]

    def place(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        for name, offset in offsets.items():
            partition = partition_of(name)
            self._taken.pop(partition, None)
            # A partition that went to another worker meanwhile is not ours to place.
            with suppress(*_GONE):
                self._consumer.seek(partition, offset)
                if partition not in self._held:
                    self._consumer.resume(partition)
            self._rebalances.unplaced.discard(partition)
        if self._unpacks:
            share = _ROUND_BYTES // max(1, len(self._consumer.assignment()))
            config = self._consumer._fetcher.config  # noqa: SLF001
            config["max_partition_fetch_bytes"] = min(max(share, _LEAST_BYTES), _FETCH_BYTES)

    def rewind(self) -> None:
        """See `Member`."""
        assigned = self._consumer.assignment()
        with suppress(*_GONE):
            self._consumer.pause(*assigned)
        self._rebalances.unplaced |= set(assigned)

    def hold(self, partitions: Collection[str]) -> None:
        """See `Member`."""
        held = {partition_of(name) for name in partitions}
        assigned = self._consumer.assignment()
        with suppress(*_GONE):
            self._consumer.pause(*(held & assigned))
            self._consumer.resume(*((self._held - held) & assigned - self._rebalances.unplaced))
        self._held = held

    def poll(self, *, wait: bool) -> Sequence[Fetched]:
        """See `Member`."""
        failed, self._failed = self._failed, None
        try:
            if failed is not None:
                raise failed
            self._next(POLL_MS if wait else 0, self._settings.max_poll_records)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError, LogTruncationError) as error:
            # Just assigned, or no longer there.
            raise Displaced(str(error)) from error
        except KafkaError as error:
            raise refused(self._settings, error) from error
        self._fill()
        taken = self._taken.copy()
        self._taken.clear()
        return [
            Fetched(partition_name(partition), records)
            for partition, records in taken.items()
            if partition not in self._rebalances.unplaced
        ]

    def _next(self, timeout_ms: int, most: int) -> bool:
        """Take up to so many records more, and return whether there were any."""
        self._make_way()
        polled = self._consumer.poll(timeout_ms=timeout_ms, max_records=most)
        if not self._unpacks:
            for partition, records in polled.items():
                taken = self._taken.setdefault(partition, Records())
                for record in records:
                    taken.append_apart(record.offset, record.key, record.value)
        return bool(polled)

    def _fill(self) -> None:
        """Add what is fetched next while a backlog is read, up to a full batch: the larger, the less an event costs."""
        until = time.monotonic() + _FULL_S
        while time.monotonic() < until:
            left = self._settings.max_poll_records - sum(map(len, self._taken.values()))
            behind = [self._behind(partition, records.offset(-1)) for partition, records in self._taken.items()]
            if not 0 < left <= sum(behind):
                return
            try:
                if not self._next(_MORE_MS, left):
                    return
            except KafkaError as error:
                # The client may say it once only, and what has come would be lost: it is for the next poll.
                self._failed = error.with_traceback(None)
                return

    def _behind(self, partition: TopicPartition, offset: int) -> int:
        """Return how many offsets a partition is known to have behind one."""
        mark = self.highwater(partition_name(partition))
        return 0 if mark is None else max(0, mark - offset - 1)

    def _make_way(self) -> None:
        """Put the records in line aside if they are of a paused partition, or there are none.

        kafka-python 3.0.12 returns to the records that it keeps of a paused partition only when no partition is in
        line, and one that is drained stays there: resumed partitions might never be read again. One that is paused is
        put aside within the next `poll`, which is too late for the others: it sleeps for a tenth of a second first.
        """
        fetcher = self._consumer._fetcher  # noqa: SLF001
        in_line = fetcher._next_partition_records  # noqa: SLF001
        if in_line and in_line.topic_partition in self._consumer.paused():
            fetcher._paused_partition_records[in_line.topic_partition] = in_line  # noqa: SLF001
        elif in_line:
            return
        fetcher._next_partition_records = None  # noqa: SLF001

    def stay(self) -> None:
        """See `Member`: poll with everything paused."""
        assigned = self._consumer.assignment()
        paused = [each for each in assigned if each not in self._consumer.paused()]
        with suppress(*_GONE):
            self._consumer.pause(*paused)
        try:
            self._consumer.poll(timeout_ms=POLL_MS)
        except KafkaError as error:
            log.debug("poll while waiting failed error=%s", error)
        time.sleep(POLL_MS / 1000)
        still = [each for each in paused if each in self._consumer.assignment()]
        with suppress(*_GONE):
            self._consumer.resume(*[each for each in still if each not in self._rebalances.unplaced])

    def position(self, partition: str) -> int | None:
        """See `Member`."""
        reached: int | None = None
        with suppress(KafkaError, *_GONE):
            reached = self._consumer.position(partition_of(partition), timeout_ms=0)
        return reached

    def highwater(self, partition: str) -> int | None:
        """See `Member`."""
        mark: int | None = None
        with suppress(*_GONE):
            mark = self._consumer.highwater(partition_of(partition))
        return mark

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        self._consumer.commit_async(_commit(offsets))

    def close(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        if offsets:
            with suppress(KafkaError):
                self._consumer.commit(_commit(offsets), timeout_ms=CLOSE_MS)
        self._consumer.close(autocommit=False, timeout_ms=CLOSE_MS)


def _unbound(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a coroutine on the client's thread so that what it raises is freed as soon as it was handled.

    In kafka-python 3.0.12 the error is a local variable in its own traceback, so each poll in which nothing came kept
    what was being fetched, until Python looked for cyclic garbage: a hundred megabytes after a minute.
    """

    def unbound(coroutine: Any, *arguments: Any) -> Any:
        try:
            return run(coroutine, *arguments)
        except KafkaError as error:
            raise error.with_traceback(None) from error.__cause__

    return unbound


def _commit(offsets: Mapping[str, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition_of(name): OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()}


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python carries no types
    """Pauses what is new, notes what is gone."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.unplaced: set[TopicPartition] = set()
        self.joined = False

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.joined = True
        self._consumer.pause(*assigned)
        self.unplaced |= set(assigned)
        log.info("partitions assigned count=%d", len(assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        # They stay unplaced: one that comes back may have been read further than what was handed out.
        log.info("partitions revoked count=%d", len(revoked))
