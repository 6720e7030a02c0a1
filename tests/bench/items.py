"""What counting items by themselves costs: bytes per item in a slice of the horizon, and CPU per event.

200 000 items with ids of 12 characters are shown twice each, five to a response; then every one of them is rated. It is
all decoded and applied without Kafka, once with `items` and once without, in the same process.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from monitor.clock import wall_clock
from monitor.config import ItemSettings, StoreSettings
from monitor.engine.id_hash import IdHasher
from monitor.events import Decoder
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.records import Records
from monitor.ingest.simulator import Scenario
from monitor.ingest.source import Slice
from monitor.ingest.writer import Writer
from monitor.service import opened, writer_for
from monitor.store import Advance, Position
from tests.bench.figures import Figure
from tests.bench.loader import END_MS
from tests.bench.settings import settings_of
from tests.servers.redis import RedisServer, redis_binary

_ITEMS: Final = 200_000
_SHOWN: Final = 5
_POLL: Final = 1000
_PARTITION: Final = "bench:0"


def measure() -> Iterator[Figure]:
    """Yield bytes per item and the CPU of an event."""
    for items in (None, ItemSettings(30, most=_ITEMS)):
        with RedisServer(redis_binary()) as server:
            settings = settings_of(Scenario())
            experiment = replace(settings.experiments[0], items=items)
            settings = replace(settings, experiments=(experiment,), store=StoreSettings(url=server.url))
            client = server.client()
            with opened(settings, wall_clock) as opening:
                number = opening.held.numbers[experiment.name]
                identities = IdHasher(opening.held.hash_key)
                experiments = [Experiment(number, experiment)]
                intake, writer = Intake(experiments, identities), writer_for(opening.store, experiments, identities)
                writer.state([_PARTITION])
                decoder, late = Decoder(settings), {str(number): 0, PENDING_CLASS: 0}
                first = 0
                for again in (False, True):
                    shown = list(_shown(experiment.name, sorted(experiment.variants), again=again))
                    cost_us = _cost_us(intake, writer, decoder, late, shown, first)
                    first += len(shown)
                    said = "with" if items is not None else "without"
                    known = "known" if again else "new"
                    yield Figure(f"response of 5 {known} items {said} counts: worker, without Kafka", cost_us, "µs")
                if items is not None:
                    counts = _bytes(client, b"I:")
                    yield Figure("item that is shown in a slice", counts / _ITEMS, "bytes")
                    yield Figure("id of an item in a horizon", _bytes(client, b"N:") / _ITEMS, "bytes")
                    _cost_us(intake, writer, decoder, late, list(_rated()), first)
                    yield Figure("item that is rated in a slice as well", _bytes(client, b"I:") / _ITEMS, "bytes")


def _shown(experiment: str, variants: Sequence[str], *, again: bool) -> Iterator[dict[str, Any]]:
    for number in range(_ITEMS // _SHOWN):
        yield {
            "response_id": f"{'repeated' if again else 'measured'}-{number:010d}",
            "timestamp": END_MS + number,
            "experiment": experiment,
            "variant": variants[0],
            "user_id": f"student-{number % 1000}",
            "items": [{"item_id": _item(number * _SHOWN + at), "position": at + 1} for at in range(_SHOWN)],
        }


def _rated() -> Iterator[dict[str, Any]]:
    for item in range(_ITEMS):
        yield {
            "feedback_id": f"f-{item}",
            "response_id": f"measured-{item // _SHOWN:010d}",
            "timestamp": END_MS + _ITEMS + item,
            "item_id": _item(item),
            "kind": "rating",
            "score": item % 5,
        }


def _item(number: int) -> str:
    return f"video-{number:06d}"


def _cost_us(
    intake: Intake,
    writer: Writer,
    decoder: Decoder,
    late: dict[str, int],
    events: Sequence[dict[str, Any]],
    first: int,
) -> float:
    """Apply the events and return the CPU of this thread for each, in the cheapest fifth of the polls."""
    payloads: list[bytes | None] = [json.dumps(event).encode() for event in events]
    gc.collect()
    costs = []
    for begin in range(0, len(payloads), _POLL):
        some = payloads[begin : begin + _POLL]
        offset = first + begin
        end = offset + len(some)
        started = time.thread_time()
        each = Slice(_PARTITION, "event", offset, Records.of(range(offset, end), some), end)
        decoded = decode([each], decoder, intake, wall_clock())
        step = Advance(_PARTITION, offset or None, Position(end))
        status, _ = writer.begin(decoded.events, late, [step])()
        costs.append((time.thread_time() - started) * 1e6 / len(some))
        if status != "applied" or decoded.refused:
            raise SystemExit(f"a batch was not applied: {status}, {decoded.refused[:1]}")
    return sorted(costs)[len(costs) // 5]


def _bytes(client: Any, kind: bytes) -> int:
    """Return what the server holds of one kind of keys, their names and places in its table included."""
    names = client.scan_iter(b"abm:{0}:0:" + kind + b"*", count=10_000)
    return sum(client.memory_usage(name, samples=0) for name in names)
