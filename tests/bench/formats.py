"""CPU per event of a worker that reads other formats, each beside a worker that reads the native format.

The mapped formats have 8 fields in nested objects, and 5 nested items: see tests/support/wire_formats.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from threading import Barrier
from typing import Final

from monitor.simulation import SimulatedEvent
from tests.bench.figures import Figure
from tests.bench.workers import Traffic, WorkerGroup, check_equal
from tests.servers.kafka import KafkaBroker
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.wire_formats import Encoding, configure, encodings, read_events

_ROUNDS: Final = 3
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
    """Yield the CPU of a worker per format, as a ratio to the native format."""
    ratios: dict[str, list[float]] = {name: [] for name in _FORMATS}
    totals: list[object] = []
    with KafkaBroker() as broker, SchemaRegistryServer() as registry, ThreadPoolExecutor(2) as pool:
        traffic = Traffic(max(responses // _SHARE, 1))
        formats = encodings(registry)
        native = _encoded(traffic, formats["native"], registry.url)
        for name, values in ratios.items():
            mapped = _encoded(traffic, formats[name], registry.url)
            for number in range(_ROUNDS):
                with ExitStack() as stack:
                    groups = [
                        WorkerGroup(stack, broker, events, f"{label}-{name}-{number}")
                        for label, events in (("native", native), ("other", mapped))
                    ]
                    ready = Barrier(2, timeout=300)
                    runs = [pool.submit(group.measure, ready) for group in groups]
                    base, cost = (run.result() for run in runs)
                    totals += [group.totals() for group in groups]
                values.append(cost.worker / base.worker)
    check_equal(totals)
    for name, values in ratios.items():
        yield Figure(f"{_FORMATS[name]}: worker CPU", median(values), "× native", _MAX_RATIOS.get(name))


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
