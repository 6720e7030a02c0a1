"""Simulated events on their way: at the pace of their arrival, and into Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kafka import KafkaProducer
from kafka.errors import KafkaError

from monitor.clock import Clock, wall_clock
from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.ingest.connection import connect, translate_error
from monitor.ingest.simulator import SimulatedEvent


def paced(
    events: Iterator[SimulatedEvent], *, clock: Clock = wall_clock, sleep: Callable[[float], object] = time.sleep
) -> Iterator[SimulatedEvent]:
    """Yield events no earlier than they arrive; what lies in the past comes at once."""
    for event in events:
        ahead_ms = event.arrival_ms - clock()
        if ahead_ms > 0:
            sleep(ahead_ms / 1000)
        yield event


def send_to_kafka(events: Iterator[SimulatedEvent], settings: KafkaSettings) -> int:
    """Write events to their topics, keyed by student, and wait for every acknowledgement; return how many."""
    topics = {"response": settings.responses_topic, "feedback": settings.feedback_topic}
    failures: list[BaseException] = []
    producer = connect(KafkaProducer, settings, acks="all", linger_ms=20, batch_size=1 << 17, metrics_enabled=False)
    try:
        written = 0
        for event in events:
            producer.send(topics[event.kind], value=event.payload, key=event.key).add_errback(failures.append)
            written += 1
            if failures:
                break
        producer.flush(timeout=60)
        producer.close(timeout=60)
    except KafkaError as error:
        raise translate_error(settings, error) from error
    if failures:
        raise DependencyUnavailable(f"Kafka at {settings.bootstrap_servers} refused an event: {failures[0]}")
    return written
