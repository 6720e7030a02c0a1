"""Events per CPU-second of the worker on a real broker and a real server, and where the time goes.

The stream (the simulator's W1, 5 items and about 370 bytes per response, 4 partitions per topic) is written to Kafka
first. Readings of it follow in this process, with each client of Kafka: poll only, poll and decode, poll, decode and
validate, and the whole worker; then the
totals are compared with a recomputation of the stream that shares no code, because a fast wrong answer would be no
answer. Since the machine is now faster and now slower, all of that is done three times:
the cheapest floor and worker are given, and of ratios, whose parts were read one after the other, the mean.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

import msgspec
from kafka import KafkaConsumer, TopicPartition

from monitor.clock import wall_clock
from monitor.config import Client, KafkaSettings, Settings, StoreSettings
from monitor.errors import Refusal
from monitor.events import Decoder
from monitor.events.records import WireFeedback, WireResponse
from monitor.ingest.kafka import KafkaSource
from monitor.ingest.sending import send_to_kafka
from monitor.ingest.simulator import Scenario, generate, w1
from monitor.ingest.source import Slice
from monitor.ingest.telemetry import Telemetry
from monitor.ingest.writer import DirectWriter
from monitor.service import opened, worker_for
from monitor.store import Keys, Position
from tests.bench import peers
from tests.bench.figures import Figure
from tests.bench.settings import settings_of
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.oracle import judge

PARTITIONS = 4
_ROUNDS: Final = 3


@dataclass
class Reading:
    """One pass over the stream."""

    name: str
    events: int
    cpu_s: float
    wall_s: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Events per CPU-second of this process."""
        return self.events / self.cpu_s


@dataclass(frozen=True, slots=True)
class _Aims:
    """What a worker with one of the clients is held to."""

    client: Client
    prefix: str
    """Of the names of its figures."""
    most_floors: float
    """Own CPU, in those of poll and decode with the same client."""
    most_both: float
    """The same with redis-server."""


_CLIENTS: Final = (
    _Aims("kafka-python", "", 2.0, 212_000 / 80_000),
    _Aims("confluent", "confluent: ", 5.0, 800_000 / 110_000),
)
"""With redis-server the aims are rates, on a machine of which the floor is known."""


@dataclass(frozen=True, slots=True)
class _Round:
    """Readings with one client, one after the other."""

    floor: Sequence[Reading]
    worker: Reading
    server_us: float
    bytes_used: float

    @property
    def both_us(self) -> float:
        return 1e6 / self.worker.rate + self.server_us


def measure(responses: int = 300_000) -> Iterator[Figure]:
    """Yield the figures of a stream of so many responses with each client, and those of the peer on the same stream."""
    scenario = replace(w1(), responses=responses)
    with KafkaBroker() as broker:
        settings = settings_for(scenario, broker)
        events = sum(write(scenario, broker, settings).values())
        rounds: list[dict[Client, _Round]] = []
        peer_rounds: list[peers.Peer] = []
        for number in range(_ROUNDS):
            rounds.append({aims.client: _round(scenario, settings, events, aims.client, number) for aims in _CLIENTS})
            with RedisServer(redis_binary()) as server:
                peer_rounds.append(peers.run(settings.kafka, events, server))
            peers.check(peer_rounds[-1], settings, scenario)
        for aims in _CLIENTS:
            yield from _figures(aims, [each[aims.client] for each in rounds])
        yield Figure("row of a response (MEMORY USAGE)", rounds[0]["kafka-python"].bytes_used, "bytes")
        peer = min(peer_rounds, key=lambda each: each.cpu_s + each.server_s)
        yield Figure("events per CPU-second: batched Python peer", events / peer.cpu_s, "/s")
        yield Figure("the peer's redis-server", peer.server_s / events * 1e6, "µs per event")
        pairs = [(other, each["kafka-python"]) for other, each in zip(peer_rounds, rounds, strict=True)]
        own = fmean(other.cpu_s / each.worker.cpu_s for other, each in pairs)
        yield Figure("worker against the peer, own CPU", own, "×", least=3.0)
        both = fmean((other.cpu_s + other.server_s) / events * 1e6 / each.both_us for other, each in pairs)
        yield Figure("worker against the peer, with redis-server", both, "×")


def _round(scenario: Scenario, settings: Settings, events: int, client: Client, number: int) -> _Round:
    with RedisServer(redis_binary()) as server:
        kafka = replace(settings.kafka, client=client, group_id=f"bench-{client}-{number}")
        chosen = replace(settings, kafka=kafka, store=StoreSettings(url=server.url))
        floor, worker = readings(chosen, events, server)
        server_us, bytes_used = _check(scenario, chosen, server, events)
    return _Round(floor, worker, server_us, bytes_used)


def _figures(aims: _Aims, rounds: Sequence[_Round]) -> Iterator[Figure]:
    """Yield what the readings with one client come to: the cheapest, and the mean of each round's ratio."""
    prefix = aims.prefix
    for place, name in enumerate(("poll", "poll and decode, the floor", "poll, decode and validate")):
        rate = max(each.floor[place].rate for each in rounds)
        yield Figure(f"{prefix}events per CPU-second: {name}", rate, "/s")
    best = min(rounds, key=lambda each: each.both_us)
    worker = best.worker
    yield Figure(f"{prefix}events per CPU-second: worker", worker.rate, "/s")
    floors = fmean(each.floor[1].rate / each.worker.rate for each in rounds)
    yield Figure(f"{prefix}own CPU of the worker", floors, "× the floor", most=aims.most_floors)
    yield Figure(f"{prefix}events per CPU-second: worker and redis-server", 1e6 / best.both_us, "/s")
    floors = fmean(each.floor[1].rate * each.both_us / 1e6 for each in rounds)
    yield Figure(f"{prefix}CPU of worker and redis-server", floors, "× the floor", most=aims.most_both)
    for name, cpu_s in worker.parts.items():
        yield Figure(f"{prefix}worker: {name}", cpu_s / worker.events * 1e6, "µs per event")
    yield Figure(f"{prefix}redis-server", best.server_us, "µs per event")
    yield Figure(f"{prefix}worker, wall", worker.events / worker.wall_s, "events/s")


def readings(settings: Settings, events: int, server: RedisServer) -> tuple[list[Reading], Reading]:
    """Return poll, poll + decode and poll + decode + validate; and the worker on the same stream."""
    plain = settings.kafka.client == "kafka-python"
    floor = [
        _poll(settings.kafka, events) if plain else _read("poll", settings.kafka, events, lambda _: None),
        _poll(settings.kafka, events, decode=True)
        if plain
        else _read("poll + decode", settings.kafka, events, _decode),
        _read("poll + decode + validate", settings.kafka, events, _validating(settings)),
    ]
    return floor, _work(settings, events, server)


def _poll(kafka: KafkaSettings, events: int, *, decode: bool = False) -> Reading:
    """Read the stream with kafka-python alone, as anybody would."""
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        max_poll_records=kafka.max_poll_records,
        isolation_level="read_committed",
        enable_auto_commit=False,
        metrics_enabled=False,
    )
    topics = {kafka.responses_topic: _RESPONSE, kafka.feedback_topic: _FEEDBACK}
    consumer.assign([TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)])
    consumer.seek_to_beginning()
    seen = 0
    cpu, wall = time.process_time(), time.perf_counter()
    while seen < events:
        for partition, records in consumer.poll(timeout_ms=200).items():
            seen += len(records)
            if decode:
                one = topics[partition.topic]
                for record in records:
                    one(record.value)
    reading = Reading("kafka-python", events, time.process_time() - cpu, time.perf_counter() - wall)
    consumer.close()
    return reading


def settings_for(scenario: Scenario, broker: KafkaBroker) -> Settings:
    """Return the settings of the scenario's configuration on this broker."""
    settings = settings_of(scenario)
    return replace(settings, kafka=replace(settings.kafka, bootstrap_servers=broker.bootstrap))


def write(scenario: Scenario, broker: KafkaBroker, settings: Settings) -> Counter[str]:
    """Write the stream to Kafka and count it: responses and feedback, the re-sent ones too."""
    for topic in (settings.kafka.responses_topic, settings.kafka.feedback_topic, settings.kafka.dead_letter_topic):
        broker.create_topic(topic, PARTITIONS)
    written: Counter[str] = Counter()

    def counted() -> Iterator[Any]:
        for event in generate(scenario):
            written[event.kind] += 1
            yield event

    send_to_kafka(counted(), settings.kafka)
    return written


def _read(name: str, kafka: KafkaSettings, events: int, use: Callable[[Sequence[Slice]], None]) -> Reading:
    source = KafkaSource(replace(kafka, group_id=f"{kafka.group_id}-{name.replace(' ', '').replace('+', '-')}"))
    seen = 0
    reached: dict[str, Position] = {}
    cpu, wall = 0.0, 0.0
    while seen < events:
        if waiting := source.unplaced():
            source.place({name: reached.get(name, Position(0)) for name in waiting})
            if not seen:
                cpu, wall = time.process_time(), time.perf_counter()
        slices = source.poll()
        if not slices:
            # As a worker does: joins anew when the group has forgotten partitions, or a consumer is stuck.
            source.trouble()
        seen += sum(len(each.records) for each in slices)
        reached |= {each.partition: Position(each.next_offset) for each in slices}
        use(slices)
    reading = Reading(name, events, time.process_time() - cpu, time.perf_counter() - wall)
    source.close()
    return reading


_RESPONSE = msgspec.json.Decoder(WireResponse).decode
_FEEDBACK = msgspec.json.Decoder(WireFeedback).decode


def _decode(slices: Sequence[Slice]) -> None:
    """Do what nobody can do without: the floor."""
    for each in slices:
        one = _RESPONSE if each.kind == "response" else _FEEDBACK
        for record in each.records:
            one(record.value or b"")


def _validating(settings: Settings) -> Callable[[Sequence[Slice]], None]:
    decoder = Decoder(settings)

    def decode(slices: Sequence[Slice]) -> None:
        now_ms = wall_clock()
        for each in slices:
            one = decoder.response if each.kind == "response" else decoder.feedback
            try:
                _ = [one(record.value, now_ms) for record in each.records]
            except Refusal as refusal:
                raise SystemExit(f"the simulator wrote a refused event: {refusal}") from refusal

    return decode


@contextmanager
def _timed(parts: dict[str, float], name: str, holder: object, method: str) -> Iterator[None]:
    """Add the CPU time of this thread inside one method to `parts`."""
    original = getattr(holder, method)

    def timed(*args: object, **options: object) -> object:
        started = time.thread_time()
        try:
            return original(*args, **options)
        finally:
            parts[name] = parts.get(name, 0.0) + time.thread_time() - started

    setattr(holder, method, timed)
    try:
        yield
    finally:
        setattr(holder, method, original)


def _others_cpu_s() -> float:
    """Return the CPU time of this process without that of the thread which looks on."""
    return time.process_time() - time.thread_time()


def _work(settings: Settings, events: int, server: RedisServer) -> Reading:
    parts: dict[str, float] = {}
    sending: dict[str, float] = {}
    with opened(settings, wall_clock) as opening:
        source = KafkaSource(replace(settings.kafka, group_id=f"{settings.kafka.group_id}-worker"))
        topics = {"response": settings.kafka.responses_topic, "feedback": settings.kafka.feedback_topic}
        worker = worker_for(settings, opening, source, Telemetry(), topics, wall_clock)
        writer = worker._writer
        assert isinstance(writer, DirectWriter)
        store = writer._store
        server.client().config_resetstat()
        gc.collect()
        with (
            _timed(parts, "poll", source, "poll"),
            _timed(parts, "decode, validate and take in", worker, "_decode"),
            _timed(parts, "attribution and rows", writer, "begin"),
            _timed(sending, "store", store, "start"),
            _timed(parts, "store", store, "_judged"),
        ):
            thread = threading.Thread(target=worker.run, name="worker")
            cpu, wall = _others_cpu_s(), time.perf_counter()
            thread.start()
            while worker.events < events and thread.is_alive():
                time.sleep(0.005)
            reading = Reading("worker", events, _others_cpu_s() - cpu, time.perf_counter() - wall, parts)
            worker.stop()
            thread.join()
        source.close()
    parts["attribution and rows"] -= sending["store"]
    parts["store"] += sending["store"]
    parts["client threads and the rest"] = reading.cpu_s - sum(parts.values())
    return reading


def _check(scenario: Scenario, settings: Settings, server: RedisServer, events: int) -> tuple[float, float]:
    """Compare the totals with a recomputation of the stream; return the server's µs per event, bytes per response."""
    client = server.client()
    used = client.info("cpu")
    decoder = Decoder(settings)
    now_ms = wall_clock() + 10**12
    judged = judge(settings.experiments[0], (decoder.event(each.payload, now_ms) for each in generate(scenario)))
    with opened(settings, wall_clock) as opening:
        (summary,) = opening.reader.summary().experiments.values()
    for name, found in summary.variants.items():
        own = [each for each in judged if each.response.variant == name]
        for metric, measured in found.metrics.items():
            values = [each.metrics[metric] for each in own if each.rated]
            total = math.fsum(value for value in values if value is not None)
            if found.responses != len(own) or abs(measured.sum - total) > 1e-8 * max(len(own), 1):
                raise SystemExit(f"wrong: {name} {metric}: {measured.sum} in the store, {total} recomputed")
    keys = list(client.scan_iter(Keys().row(b"*")))
    sample = keys[:: max(len(keys) // 2000, 1)]
    bytes_used = sum(client.memory_usage(key) or 0 for key in sample) / len(sample)
    return (used["used_cpu_user"] + used["used_cpu_sys"]) / events * 1e6, round(bytes_used)
