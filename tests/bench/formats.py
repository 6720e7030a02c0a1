"""CPU per event of a worker that reads other formats, as a ratio to the native format.

The mapped formats have 8 fields in nested objects, and 5 nested items: see tests/support/wire_formats.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from threading import Barrier
from typing import Final

from monitor.simulation import SimulatedEvent
from tests.bench.figures import Figure
from tests.bench.workers import Traffic, WorkerGroup, check_equal
from tests.servers.kafka import KafkaBroker
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.wire_formats import Encoding, configure, encodings, read_events

_ROUNDS: Final = 4
_SHARE: Final = 5
"""Divisor of the responses: ratios need fewer than the other parts."""
_FORMATS: Final = {
    "nested": "mapped JSON",
    "framed": "framed JSON",
    "avro": "mapped Avro",
    "protobuf": "mapped Protobuf",
}
_MAX_RATIOS: Final = {"nested": 1.3}


def measure(responses: int) -> Iterator[Figure]:
    """Yield the CPU of a worker per format, as a ratio to the native format: the smallest of all rounds."""
    costs: dict[str, list[float]] = {name: [] for name in ("native", *_FORMATS)}
    totals: list[object] = []
    with KafkaBroker() as broker, SchemaRegistryServer() as registry:
        traffic = Traffic(max(responses // _SHARE, 1))
        formats = encodings(registry)
        encoded = {name: _encoded(traffic, formats[name], registry.url) for name in costs}
        for number in range(_ROUNDS):
            for name, values in costs.items():
                with ExitStack() as stack:
                    group = WorkerGroup(stack, broker, encoded[name], f"{name}-{number}")
                    values.append(group.measure(Barrier(1)).worker)
                    totals.append(group.totals())
    check_equal(totals)
    for name, label in _FORMATS.items():
        ratio = min(costs[name]) / min(costs["native"])
        yield Figure(f"{label}: worker CPU", ratio, "× native", _MAX_RATIOS.get(name))


def _encoded(traffic: Traffic, encoding: Encoding, registry_url: str) -> Traffic:
    """Return the same events in another format."""
    encoded = copy.copy(traffic)
    encoded.config = configure(traffic.config, encoding, registry_url)
    encoded.before, encoded.measured = (_encode(events, encoding) for events in (traffic.before, traffic.measured))
    return encoded


def _encode(events: Sequence[SimulatedEvent], encoding: Encoding) -> list[SimulatedEvent]:
    messages = encoding.messages(read_events(events))
    return [
        event._replace(payload=message.value or b"", key=message.key)
        for event, message in zip(events, messages, strict=True)
    ]
