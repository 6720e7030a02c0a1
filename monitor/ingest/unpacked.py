"""What kafka-python's fetcher keeps of a fetch, replaced: see docs/decisions/0008-unpacking.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError

from monitor.ingest.membership import partition_name
from monitor.ingest.records import Records
from monitor.ingest.unpacking import records_of

KNOWN: Final = "3.0.12"
"""The version of kafka-python whose inner parts this fits; with others unpacking costs ten times as much."""
_V2: Final = 2
"""The message format since Kafka 0.11."""


class Unpacked(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python carries no types
    """The records of one fetch of a partition, by the batch, without what nobody asks for.

    They are noted beside what the client returns, which is as many times nothing.
    """

    next_fetch_offset: int

    def __init__(self, taken: dict[TopicPartition, Records], *arguments: Any, **options: Any) -> None:
        self._taken = taken
        self._batch = Records()
        """What has been unpacked of the fetch, and how much of it has been taken."""
        self._at = 0
        super().__init__(*arguments, **options)

    def take(self, n: int) -> list[None]:
        """Note the next records as taken, and return nothing so many times: the client only counts them.

        If they are damaged, all that is left of the fetch is fetched again.
        """
        left = n
        try:
            self._maybe_raise_next_inline_exception()
            while left and self._has_more():
                begin, self._at = self._at, min(self._at + left, len(self._batch))
                self._taken.setdefault(self.topic_partition, Records()).extend(self._batch, begin, self._at)
                self.next_fetch_offset = self._batch.offset(self._at - 1) + 1
                left -= self._at - begin
        except Exception as error:  # whatever it was has ended the iterator, and the client would ask that without end
            if left == n:
                self.drain()
                raise
            self._next_inline_exception = error
        return [None] * (n - left)

    def _has_more(self) -> bool:
        """Return whether there are records to take; batches are unpacked until one has some where the fetch begins."""
        while self._at == len(self._batch):
            batch = next(self.record_iterator, None) if self else None
            if batch is None:
                return False
            self._batch, self._at = batch, batch.place_of(self.fetch_offset)
        return True

    def _maybe_skip_record(self, batch: Records) -> bool:
        """Return that none is skipped here: a batch is entered where the fetch begins."""
        del batch
        return False

    def _unpack_records(self, tp: TopicPartition, records: Any, *deserializers: object) -> Iterator[Records]:
        """Yield the records of committed transactions, and of those that are in none, batch by batch."""
        del deserializers
        next_offset = self.next_fetch_offset
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise CorruptRecordError(f"the batch at offset {batch.base_offset} of {partition_name(tp)} is damaged")
            if batch.magic != _V2:
                old = self._old_records_of(tp, batch)
                next_offset = old.offset(-1) + 1
                yield old
                continue
            next_offset = batch.next_offset
            # Says which partitions the next fetch begins with.
            self.bytes_read += batch.size_in_bytes
            self.leader_epoch = batch.leader_epoch
            if self._is_left_out(batch):
                self.next_fetch_offset = next_offset
                continue
            found = self._records_of(tp, batch)
            del batch  # while its records are taken, it would be in memory a second time
            yield found
        # The last records of the last batch may be gone by compaction.
        self.next_fetch_offset = next_offset
        self.drain()

    @staticmethod
    def _old_records_of(tp: TopicPartition, batch: Any) -> Records:
        """Return those of a batch in an older format, as kafka-python reads them."""
        found = Records()
        for record in batch:
            if not record.validate_crc():
                raise CorruptRecordError(f"offset {record.offset} of {partition_name(tp)} is damaged")
            found.append_apart(record.offset, record.key, record.value)
        return found

    def _is_left_out(self, batch: Any) -> bool:
        """Return whether the batch marks the end of a transaction, or is of one that was aborted."""
        if batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            # Compaction leaves the last batch of a producer without records.
            if batch.records_count and self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    @staticmethod
    def _records_of(tp: TopicPartition, batch: Any) -> Records:
        iter(batch)  # decompresses
        try:
            return records_of(bytes(batch._buffer), batch._pos, batch.records_count, batch.base_offset)  # noqa: SLF001
        except ValueError as error:
            raise CorruptRecordError(
                f"the batch at offset {batch.base_offset} of {partition_name(tp)} is damaged: {error}"
            ) from error
