"""Counts of arriving events by topic, as part of the commit of each batch; see `monitor.state.arrivals`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from monitor.clock import HOUR_MS
from monitor.config import MAX_NAME_LENGTH, DiscoverSettings, KafkaSettings
from monitor.errors import escape_controls
from monitor.pipeline.batch_applier import RECORD_ALL_NAMES, OutcomeCounts
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.sources import PartitionRecords, RejectedRecord
from monitor.state import ArrivalCount, Commit, StoreKeys, add_arrivals

_MAX_NAMES_PER_HOUR: Final = 50
"""Largest number of undeclared names that a worker counts one by one in an hour: anybody may write new names."""
_FIELD: Final = re.compile(r"([a-z_]+)(?:\[\d+\])?((?:\.[a-z_]+)?):")
"""The field at the beginning of `RejectedRecord.detail`, with or without an index."""
_OTHER_NAMES: Final = ("", "")
_EXPECTED_OUTCOMES: Final = frozenset({"applied", "duplicate", "revised"})


class ArrivalCounter:
    """Counts the records of batches and their outcomes. Every worker has one."""

    def __init__(self, kafka: KafkaSettings, discover: DiscoverSettings = RECORD_ALL_NAMES) -> None:
        self._discover = discover
        self._topics = kafka.topic_labels
        """Topics by event type, for the outcomes of events."""
        self._topic_of = kafka.topic_label
        self._hour = 0
        self._names: set[tuple[str, str]] = set()
        """Undeclared names that were counted one by one in the hour."""

    def count_records(
        self, polled: Sequence[PartitionRecords], decoded: DecodedBatch, arrived_ms: int
    ) -> Counter[ArrivalCount]:
        """Return the counts of polled records: received, ignored, rejected, and of undeclared names."""
        counts: Counter[ArrivalCount] = Counter()
        topics: dict[str, str] = {}
        for partition_records in polled:
            topic = topics[partition_records.partition] = self._topic_of(partition_records.topic)
            counts[ArrivalCount(topic, "received")] += len(partition_records.records)
        for rejected in decoded.rejected_records:
            counts[ArrivalCount(topics[rejected.partition], "rejected", _rejection_detail(rejected))] += 1
        for ignored in decoded.ignored_records:
            counts[ArrivalCount(topics[ignored.partition], "ignored", ignored.reason)] += 1
        for names, responses in decoded.undeclared_names.most_common():
            detail = json.dumps(self._limited_names(names, arrived_ms // HOUR_MS), ensure_ascii=False)
            counts[ArrivalCount(self._topics["response"], "undeclared", detail)] += responses
        return +counts

    def append_to_commit(
        self,
        commit: Commit,
        keys: StoreKeys,
        record_counts: Mapping[ArrivalCount, int],
        outcomes: OutcomeCounts,
        arrived_ms: int,
    ) -> None:
        """Add the counts of a batch's records, and of the outcomes of its events, to the commit."""
        counts = Counter(record_counts)
        for (event_type, outcome), events in outcomes.items():
            if events and outcome not in _EXPECTED_OUTCOMES:
                counts[ArrivalCount(self._topics[event_type], "outcome", outcome)] += events
        add_arrivals(commit, keys, counts, arrived_ms)

    def _limited_names(self, names: tuple[str, str], hour: int) -> tuple[str, str]:
        """Return printable names, cut if too long; beyond the limit of different names, empty names.

        The name of an undeclared experiment, which has no variant, has to match `discover.names`.
        """
        if not names[1] and not self._discover.records(names[0]):
            return _OTHER_NAMES
        if hour != self._hour:
            self._hour, self._names = hour, set()
        experiment, variant = map(printable_name, names)
        if (experiment, variant) not in self._names and len(self._names) >= _MAX_NAMES_PER_HOUR:
            return _OTHER_NAMES
        self._names.add((experiment, variant))
        return experiment, variant


def printable_name(name: str) -> str:
    r"""Return a name with control characters as escapes, cut to the largest length of a name.

    >>> print(printable_name("ranker" + chr(27) + "[2J"))
    ranker\u001b[2J
    """
    text = escape_controls(name)
    return text if len(text) <= MAX_NAME_LENGTH else f"{text[: MAX_NAME_LENGTH - 1]}…"


def _rejection_detail(record: RejectedRecord) -> str:
    """Return the reason, followed by the field that was wrong, if known: never a part of the event."""
    field = _FIELD.match(record.detail)
    return record.reason if field is None else f"{record.reason} {field[1]}{field[2]}"
