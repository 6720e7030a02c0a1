"""Faults of Kafka."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kafka import KafkaAdminClient, TopicPartition

from monitor.app import create_worker, open_writable_store
from monitor.clock import wall_clock
from monitor.config import load_settings
from monitor.pipeline.telemetry import Telemetry
from monitor.sources import kafka_source as kafka
from tests.faults.arena import Arena, Result, Worker
from tests.faults.catalogue import Ground, fault
from tests.servers.kafka import KafkaBroker
from tests.servers.proxy import Proxy
from tests.support.command import HASHED, eventually

_FROZEN_S = 7.0
"""Less than the session of a member."""


@contextmanager
def _own_broker(ground: Ground) -> Iterator[tuple[Arena, Worker]]:
    """Yield a run in mid-stream with a broker of its own."""
    with KafkaBroker() as broker, ground.arena(broker=broker) as arena, arena.worker() as worker:
        arena.write(per_second=600)
        arena.progresses(1_000)
        yield arena, worker


@fault("Broker killed and restarted", "`kill -9`", fast=False)
def broker_killed(ground: Ground) -> Result:
    with _own_broker(ground) as (arena, worker):
        arena.broker.process.kill()
        worker.unready("Kafka at")
        arena.broker.start()
        back = time.monotonic()
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Broker frozen", "SIGSTOP for 20 s", fast=False)
def broker_frozen(ground: Ground) -> Result:
    with _own_broker(ground) as (arena, _):
        os.kill(arena.broker.process.pid, signal.SIGSTOP)
        try:
            time.sleep(20)
        finally:
            os.kill(arena.broker.process.pid, signal.SIGCONT)
        back = time.monotonic()
        arena.resumes(back)
        arena.finish()
        return arena.compare()


@fault("Network to Kafka cut", "for 15 s", fast=False)
def network_cut(ground: Ground) -> Result:
    with Proxy(0) as proxy:
        broker = KafkaBroker(advertised=proxy.port)
        proxy.target = broker.port
        with broker, ground.arena(broker=broker) as arena, arena.worker() as worker:
            arena.write(per_second=600)
            arena.progresses(1_000)
            proxy.cut()
            worker.unready("Kafka at")
            time.sleep(15)
            proxy.mend()
            back = time.monotonic()
            arena.resumes(back)
            worker.ready()
            arena.finish()
            return arena.compare()


@fault("Topics missing at start", "created later")
def topics_missing(ground: Ground) -> Result:
    with ground.arena(create_topics=False) as arena, arena.worker() as worker:
        worker.unready("does not exist")
        arena.create_topics()
        created = time.monotonic()
        arena.write(per_second=4_000)
        worker.ready()
        arena.result.resumed_s = time.monotonic() - created
        arena.finish()
        return arena.compare()


@fault("Consumer stalls", "client stops fetching; detected after 3 s here")
def stalled(ground: Ground) -> Result:
    with ground.arena() as arena, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(kafka, "_STALLED_AFTER_S", 3.0)
        settings = load_settings(arena.config, HASHED)
        opening = stack.enter_context(open_writable_store(settings, wall_clock))
        source = kafka.KafkaSource(settings.kafka)
        stack.callback(source.close)
        topics = {"response": settings.kafka.responses_topic, "feedback": settings.kafka.feedback_topic}
        worker = create_worker(settings, opening, source, Telemetry(), topics, wall_clock)
        thread = threading.Thread(target=worker.run)
        thread.start()
        arena.write(per_second=600)
        arena.progresses(1_000)
        source._consumer.pause(source.assignment())
        # What was under way is applied still.
        time.sleep(1)
        began = time.monotonic()
        arena.resumes(began)
        arena.finish()
        worker.stop()
        thread.join()
        assert source.restarts == 1
        return arena.compare()


def _recreate(arena: Arena, kind: str) -> None:
    with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
        admin.delete_topics([arena.topics[kind]])
        eventually("the topic is gone", lambda: arena.topics[kind] not in admin.list_topics())
        arena.create_topics(kind)


@fault("Topic recreated, stop", "exit code 6, then `continue`")
def topic_recreated(ground: Ground) -> Result:
    with ground.arena() as arena:
        half = len(arena.events) // 2
        with arena.worker():
            arena.write(arena.events[:half], per_second=5_000)
            arena.finish()
        _recreate(arena, "responses")
        _recreate(arena, "feedback")
        arena.write(arena.events[half:] + arena.events, per_second=20_000)
        arena.written()
        with arena.worker() as worker:
            worker.ends_with(6)
            assert "the topic was deleted and recreated" in worker.said()
        arena.write_config(kafka='on_lost_history = "continue"')
        began = time.monotonic()
        with arena.worker():
            arena.resumes(began)
            arena.finish()
        return arena.compare()


@fault("Topic recreated while running, continue", "feedback topic")
def topic_recreated_live(ground: Ground) -> Result:
    with ground.arena(kafka='on_lost_history = "continue"') as arena, arena.worker() as worker:
        half = len(arena.events) // 2
        arena.write(arena.events[:half], per_second=5_000)
        arena.finish()
        _recreate(arena, "feedback")
        began = time.monotonic()
        arena.write(arena.events[half:], per_second=600)
        # The client may need a while to notice; one that returns nothing is replaced after half a minute of lag.
        worker.says("topic was recreated", within_s=180)
        arena.resumes(began)
        arena.finish()
        return arena.compare()


def _lose_history(arena: Arena, *, applied: int, lost: int) -> None:
    """Apply some events, and have Kafka forget some of those that come after."""
    with arena.worker():
        arena.write(arena.events[:applied], per_second=5_000)
        arena.finish()
    before = arena.ends()
    arena.write(arena.events[applied : applied + lost], per_second=20_000)
    arena.written()
    with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
        gone = {}
        for name, end in arena.ends().items():
            topic, _, number = name.rpartition(":")
            if end > before[name]:
                gone[TopicPartition(topic, int(number))] = end
        admin.delete_records(gone)
    arena.write(arena.events[applied + lost :], per_second=20_000)
    arena.written()


@fault("History lost to retention, continue", "1 000 unread events deleted")
def history_lost(ground: Ground) -> Result:
    with ground.arena(kafka='on_lost_history = "continue"') as arena:
        _lose_history(arena, applied=3_000, lost=1_000)
        began = time.monotonic()
        with arena.worker() as worker:
            arena.resumes(began)
            arena.finish()
            assert worker.said().count("offsets from") >= 1
        counted = sum(map(int, arena.store.client.hvals(arena.store.first_shard.keys.events_lost)))
        assert counted == 1_000
        arena.result.note = "counted as lost"
        return arena.compare(arena.events[:3_000] + arena.events[4_000:])


@fault("History lost to retention, stop", "exit code 6, nothing skipped")
def history_lost_stop(ground: Ground) -> Result:
    with ground.arena() as arena:
        _lose_history(arena, applied=3_000, lost=1_000)
        with arena.worker() as worker:
            worker.ends_with(6)
            assert "Nothing was skipped" in worker.said()
        return arena.compare(arena.events[:3_000])


@fault("Position beyond the end", "exit code 6, then `continue`")
def beyond_the_end(ground: Ground) -> Result:
    with ground.arena() as arena:
        with arena.worker():
            arena.write(arena.events[:3_000], per_second=5_000)
            arena.finish()
        client, keys = arena.store.client, arena.store.first_shard.keys
        for name, end in arena.ends().items():
            stored = client.hget(keys.positions, name)
            client.hset(keys.positions, name, b"%d:%b" % (end + 500, stored.partition(b":")[2]))
        arena.write(arena.events[3_000:4_000], per_second=20_000)
        arena.written()
        with arena.worker() as worker:
            worker.ends_with(6)
            assert "beyond the end offset in Kafka" in worker.said()
        arena.write_config(kafka='on_lost_history = "continue"')
        with arena.worker() as worker:
            worker.says("history lost")
            arena.write(arena.events[4_000:], per_second=5_000)
            arena.finish()
        return arena.compare()


@fault("One topic far ahead", "60 days of responses before all feedback")
def backlog(ground: Ground) -> Result:
    with ground.arena(partitions=2, days=60) as arena:
        arena.write(sorted(arena.events, key=lambda event: event.kind != "response"), per_second=1e9)
        arena.written()
        began = time.monotonic()
        with arena.worker() as first, arena.worker() as second:
            paused = "watermark alignment paused partitions"
            eventually("one waits for the other", lambda: paused in first.said() + second.said())
            arena.resumes(began)
            arena.finish()
        return arena.compare()


@fault("Sudden backlog", "60 days at once, one worker frozen")
def sudden_backlog(ground: Ground) -> Result:
    with ground.arena(days=60) as arena, arena.worker() as first, arena.worker() as second:
        second.says("assigned count=4")
        first.ready()
        second.ready()
        second.signal(signal.SIGSTOP)
        try:
            frozen = time.monotonic()
            arena.write(per_second=1e9)
            arena.written()
            time.sleep(max(0.0, frozen + _FROZEN_S - time.monotonic()))
        finally:
            second.signal(signal.SIGCONT)
        arena.resumes(time.monotonic())
        arena.finish()
        assert "watermark alignment paused partitions" in first.said()
        return arena.compare()


@fault("Dead-letter topic missing", "waits until the topic exists", fast=False)
def no_dead_letters(ground: Ground) -> Result:
    with ground.arena(create_topics=False) as arena, arena.worker() as worker:
        arena.create_topics("responses", "feedback")
        producer = arena.producer()
        producer.send(arena.topics["responses"], b"nonsense", partition=0).get(30)
        producer.close()
        worker.unready("dead-letter topic", within_s=120)
        assert arena.applied() == 0
        arena.create_topics("dead")
        created = time.monotonic()
        arena.write(per_second=600)
        arena.resumes(created)
        arena.finish()
        assert [letter.value for letter in arena.dead_letters()][:1] == [b"nonsense"]
        return arena.compare()
