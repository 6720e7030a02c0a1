"""Events for a store that `Loader` has filled: new responses, and ratings of the newest loaded ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.decoding import ANY_TOPIC, RecordDecoder
from monitor.engine import EventNormalizer
from monitor.pipeline.batch_decoding import DecodedBatch, decode_records
from monitor.sources.source import PartitionRecords
from tests.bench.loader import END_MS, response_name, videos
from tests.support.streams import records_of

_ACTIVE: Final = 20_000
RECENT: Final = 100_000
_POLL: Final = 1000
_PARTITION: Final = "bench:0"


def _stream(settings: Settings, size: int, polls: int) -> Iterator[PartitionRecords]:
    """Yield polls of two responses to one rating."""
    chance = random.Random(1)
    begin = 0
    for number in range(polls):
        payloads: list[bytes | None] = []
        for place in range(_POLL):
            event = number * _POLL + place
            if place % 3:
                student = chance.randrange(_ACTIVE)
                experiment = settings.experiments[event % len(settings.experiments)]
                variants = sorted(experiment.variants)
                shown = videos(event)
                found: dict[str, Any] = {
                    "response_id": f"measured-{event:010d}",
                    "timestamp": END_MS + event,
                    "experiment": experiment.name,
                    "variant": variants[student % len(variants)],
                    "user_id": f"student-{student}",
                    "items": [{"item_id": video, "position": rank} for rank, video in enumerate(shown, 1)],
                }
            else:
                about = size - 1 - chance.randrange(min(RECENT, size))
                found = {
                    "feedback_id": f"f-{event}",
                    "response_id": response_name(about),
                    "timestamp": END_MS + event,
                    "item_id": videos(about)[chance.randrange(5)],
                    "kind": "rating",
                    "score": chance.randrange(5),
                }
            payloads.append(json.dumps(found).encode())
        yield PartitionRecords(_PARTITION, ANY_TOPIC, begin, records_of(payloads, begin), begin + _POLL)
        begin += _POLL


def decoded(settings: Settings, normalizer: EventNormalizer, size: int, polls: int) -> Iterator[DecodedBatch]:
    """Yield the decoded polls of the stream."""
    decoder = RecordDecoder(settings)
    for each in _stream(settings, size, polls):
        yield decode_records([each], decoder, normalizer, wall_clock())
