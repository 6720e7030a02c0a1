"""Unit tests of rejected records while decoding; tests/unit/events covers the content of events."""

from __future__ import annotations

import json

from monitor.clock import wall_clock
from monitor.decoding import RecordDecoder
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.pipeline.batch_decoding import decode_records
from monitor.sources.source import PartitionRecords, PlainRecord
from tests.support.streams import EXPERIMENT, settings_with
from tests.unit.events.test_decoding import RESPONSE


def test_a_rejected_record_keeps_offset_and_key_and_payload() -> None:
    """The dead-letter topic receives the record with the key."""
    settings = settings_with(EXPERIMENT)
    normalizer = EventNormalizer([Experiment(1, settings.experiments[0])], IdHasher(b"key"))
    records = [
        PlainRecord(4, b"a", json.dumps(RESPONSE).encode()), PlainRecord(9, b"b", b"{"), PlainRecord(11, None, b"")
    ]  # fmt: skip
    decoded = decode_records(
        [PartitionRecords("t:0", "", 4, records, 12)], RecordDecoder(settings), normalizer, wall_clock()
    )
    assert [(record.offset, record.key, record.value) for record in decoded.rejected_records] == [
        (9, b"b", b"{"),
        (11, None, b""),
    ]
