"""Faults of topics in other formats: the registry fails, schemas change, tombstones, and messages that are no events.

`FORMAT_TEST_OUTAGE_S` is the length of the registry's outage, by default a few seconds.
"""

from __future__ import annotations

import copy
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from monitor.config import StoreSettings
from monitor.simulation import Scenario, generate_events, render_example_config
from monitor.state import ShardedStore
from tests.faults.arena import Worker
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, ab_monitor, eventually, get, service
from tests.support.dump import Dump, dump
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.wire_formats import (
    AVRO_SCHEMAS,
    FEEDBACK_TOPIC,
    RESPONSES_TOPIC,
    Encoding,
    Event,
    Message,
    configure,
    date_of,
    encodings,
    frame,
    nested_object,
    read_events,
)

_OUTAGE_S: Final = float(os.environ.get("FORMAT_TEST_OUTAGE_S", "4"))
_SCENARIO: Final = Scenario(responses=600, students=80, days=0.5, seed=49)
_WINDOW: Final = 500
_LIMITS: Final = f"\n[limits]\nrejection_window = {_WINDOW}\n"


class _Site:
    """Topics of one partition, a registry, a store, and the simulator's events."""

    def __init__(
        self, directory: Path, broker: KafkaBroker, server: RedisServer, registry: SchemaRegistryServer
    ) -> None:
        self.directory = directory
        self.registry = registry
        self.encodings = encodings(registry)
        self.events = read_events(generate_events(_SCENARIO))
        self.name = f"source-faults-{time.monotonic_ns():x}"
        self.topics = {"response": f"{self.name}.responses", "feedback": f"{self.name}.feedback"}
        self.dead_topic = f"{self.name}.dead"
        for topic in (*self.topics.values(), self.dead_topic):
            broker.create_topic(topic, 1)
        self._broker = broker
        self._server = server
        self._written = 0
        self._logs = 0
        server.client().flushall()

    def configure(self, encoding: Encoding, *changes: tuple[str, str], url: str | None = None) -> Path:
        """Write a configuration for an encoding."""
        text = configure(render_example_config(_SCENARIO, http_port=0), encoding, self.registry.url)
        for old, new in (
            *changes,
            ("localhost:9092", self._broker.bootstrap),
            (RESPONSES_TOPIC, self.topics["response"]),
            (FEEDBACK_TOPIC, self.topics["feedback"]),
            ("ab-monitor.dead-letter", self.dead_topic),
            ('group_id = "ab-monitor"', f'group_id = "{self.name}"\nmax_poll_records = 100'),
            ("redis://localhost:6379/0", url or self._server.url),
        ):
            assert old in text or not encoding.sources
            text = text.replace(old, new)
        config = self.directory / f"{encoding.name}.toml"
        config.write_text(text + _LIMITS)
        return config

    def write(self, messages: Iterable[Message]) -> None:
        """Write messages to Kafka."""
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "linger.ms": 20})
        for message in messages:
            producer.produce(self.topics[message.kind], message.value, message.key, headers=[*message.headers])
            self._written += 1
        assert producer.flush(60) == 0

    @contextmanager
    def worker(self, config: Path) -> Iterator[Worker]:
        """Run a worker while the block runs."""
        self._logs += 1
        log = self.directory / f"worker-{self._logs}.log"
        with service(config, log, environ=HASHED) as process:
            yield Worker(process, log)

    def applied(self) -> int:
        """Return the number of applied records."""
        with closing(ShardedStore(StoreSettings(url=self._server.url), shard_count=1)) as store:
            return sum(position.next_offset for position in store.read_positions().values())

    def finish(self, extra: int = 0) -> None:
        """Wait until all records are applied; `extra` were written by others."""
        eventually("everything is applied", lambda: self.applied() == self._written + extra)

    def aggregates(self) -> Dump:
        """Return the aggregates of the store."""
        with closing(ShardedStore(StoreSettings(url=self._server.url), shard_count=1)) as store:
            return dump(store)

    def expected(self, events: Iterable[Event]) -> Dump:
        """Return the aggregates of a replay of the events in the native format."""
        url = f"{self._server.url.rstrip('/').removesuffix('/0')}/1"
        config = self.configure(self.encodings["native"], url=url)
        lines = self.directory / "events.jsonl"
        lines.write_bytes(b"".join(json.dumps(event.fields).encode() + b"\n" for event in events))
        replay = ab_monitor("replay", "--config", config, lines, environ=HASHED)
        assert replay.returncode == 0, replay.stderr
        with closing(ShardedStore(StoreSettings(url=url), shard_count=1)) as store:
            return dump(store)

    def members(self) -> set[str]:
        """Return the ids of the group's members."""
        with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
            group = admin.describe_groups([self.name])[self.name]
        return {member["member_id"] for member in group["members"]}

    def records(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        partition = TopicPartition(topic, 0)
        with closing(KafkaConsumer(bootstrap_servers=self._broker.bootstrap, enable_auto_commit=False)) as consumer:
            consumer.assign([partition])
            consumer.seek_to_beginning()
            end = consumer.end_offsets([partition])[partition]
            found: list[Any] = []
            while consumer.position(partition) < end:
                for batch in consumer.poll(timeout_ms=500).values():
                    found += batch
        return found


def _metric(worker: Worker, name: str) -> float:
    port = re.search(r"127\.0\.0\.1:(\d+)/", worker.said())
    assert port is not None
    _, page = get(f"http://127.0.0.1:{port[1]}/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


@pytest.fixture
def site(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> Iterator[_Site]:
    """Yield topics without records."""
    with SchemaRegistryServer() as registry:
        yield _Site(tmp_path, kafka, redis_server, registry)


# ------------------------------------------------------------------ schemas

_RENAMED: Final = ('latency_ms = "payload.took"', 'latency_ms = ["payload.took", "payload.took_ms"]')


def _second_version() -> dict[str, Any]:
    """Return the schema of responses with an added field and a renamed one."""
    schema: dict[str, Any] = copy.deepcopy(AVRO_SCHEMAS["response"])
    (payload,) = (field["type"] for field in schema["fields"] if field["name"] == "payload")
    (renamed,) = (field for field in payload["fields"] if field["name"] == "took")
    renamed["name"] = "took_ms"
    payload["fields"].insert(0, {"name": "model", "type": ["null", "string"]})
    return schema


def _second_messages(events: Iterable[Event], schema_id: int) -> list[Message]:
    """Return responses with the second version of the schema."""
    schema = fastavro.parse_schema(_second_version())
    messages = []
    for event in events:
        answer = nested_object(event, date_of)
        answer["payload"] |= {"took_ms": answer["payload"].pop("took"), "model": "m-2"}
        stream = BytesIO()
        fastavro.schemaless_writer(stream, schema, answer)
        messages.append(Message("response", event.key, frame(schema_id, stream.getvalue()), [("trace", b"17")]))
    return messages


def _halves(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Return all feedback and the first half of the responses; the other responses."""
    responses = [event for event in events if event.kind == "response"]
    second = responses[len(responses) // 2 :]
    names = {event.fields["response_id"] for event in second}
    return [event for event in events if event.kind == "feedback" or event.fields["response_id"] not in names], second


@pytest.mark.timeout(400)
def test_a_new_version_of_a_schema_is_read_in_mid_stream(site: _Site) -> None:
    """One field is added, another is renamed: the mapping names both paths."""
    avro = site.encodings["avro"]
    first, second = _halves(site.events)
    site.write(avro.messages(first))
    with site.worker(site.configure(avro, _RENAMED)):
        site.finish()
        site.write(_second_messages(second, site.registry.register("response-value", json.dumps(_second_version()))))
        site.finish()
    assert site.aggregates() == site.expected(site.events)
    assert site.records(site.dead_topic) == []


@pytest.mark.timeout(400)
def test_a_worker_waits_for_a_registry_that_is_down_and_loses_nothing(site: _Site) -> None:
    """It stays a member of its group, and names the reason in a metric, in `/-/ready` and once in the log."""
    avro = site.encodings["avro"]
    first, second = _halves(site.events)
    site.write(avro.messages(first))
    with site.worker(site.configure(avro, _RENAMED)) as worker:
        site.finish()
        members = site.members()
        applied = site.applied()
        site.registry.stop()
        site.write(_second_messages(second, site.registry.register("response-value", json.dumps(_second_version()))))
        worker.unready("schema registry")
        began = time.monotonic()
        eventually("the outage is over", lambda: time.monotonic() - began > _OUTAGE_S, within_s=_OUTAGE_S + 60)
        assert _metric(worker, 'abmonitor_paused{reason="schema_registry"}') == 1
        assert worker.readiness()[0] == 503
        assert site.applied() == applied
        site.registry.start()
        site.finish()
        worker.ready()
        assert _metric(worker, 'abmonitor_paused{reason="schema_registry"}') == 0
        assert site.members() == members
        assert len(members) == 1
        log = worker.said()
        assert (log.count("paused reason=schema_registry"), log.count("resumed reason=schema_registry")) == (1, 1)
    assert site.aggregates() == site.expected(site.events)


@pytest.mark.timeout(400)
def test_messages_with_an_unknown_schema_count_after_a_retry(site: _Site) -> None:
    """Their dead letters have the key, the headers and the time of the records, and the retry restores them."""
    avro = site.encodings["avro"]
    first, second = _halves(site.events)
    site.write(avro.messages(first))
    next_id = 1 + site.registry.register("other", '"string"')
    messages = _second_messages(second, next_id)
    site.write(messages)
    config = site.configure(avro, _RENAMED)
    with site.worker(config) as worker:
        site.finish()
        assert _metric(worker, "abmonitor_rejected_events_total") == len(second)
    assert site.aggregates() == site.expected(first)
    letters = site.records(site.dead_topic)
    assert [letter.value for letter in letters] == [message.value for message in messages]
    headers = dict(letters[0].headers)
    assert headers["reason"] == b"unknown_schema"
    assert headers["detail"].startswith(f"schema {next_id}: not in the registry".encode())
    assert headers["record.trace"] == b"17"
    assert site.registry.register("response-value", json.dumps(_second_version())) == next_id
    retry = ab_monitor("dead-letters", "--config", config, "retry", environ=HASHED)
    assert retry.returncode == 0, retry.stderr
    assert f"{len(second)} dead letters sent to their topics again, 0 still rejected" in retry.stdout
    records = site.records(site.topics["response"])
    rejected, retried = records[-2 * len(second) : -len(second)], records[-len(second) :]
    for record, again in zip(rejected, retried, strict=True):
        assert (again.key, again.value, again.headers, again.timestamp) == (
            record.key, record.value, record.headers, record.timestamp
        )  # fmt: skip
    with site.worker(config):
        site.finish(extra=len(second))
    assert site.aggregates() == site.expected(site.events)


# ------------------------------------------------------------------ records that are no events


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["native", "nested", "avro"])
def test_ten_thousand_tombstones_in_a_row_are_ignored(name: str, site: _Site) -> None:
    """They are counted, and neither rejected nor a reason to stop."""
    encoding = site.encodings[name]
    messages = encoding.messages(site.events)
    site.write(messages[:200])
    site.write(Message("response", b"deleted", None, []) for _ in range(10_000))
    site.write(messages[200:])
    with site.worker(site.configure(encoding)) as worker:
        site.finish()
        topic = site.topics["response"]
        assert _metric(worker, f'abmonitor_ignored_records_total{{reason="tombstone",topic="{topic}"}}') == 10_000
    assert site.records(site.dead_topic) == []
    assert site.aggregates() == site.expected(site.events)


def _poisoned(site: _Site, share: float, ignored: int) -> Iterator[Message]:
    """Yield responses of which a share is invalid, each after some messages of another type."""
    responses = [message for message in site.encodings["nested"].messages(site.events) if message.kind == "response"]
    debt = 0.0
    for message in responses:
        for _ in range(ignored):
            yield Message("response", b"u", b'{"type": "login"}', [])
        debt += share
        if debt >= 1:
            debt -= 1
            yield message._replace(value=b'{"type": "answer", "payload": {"id": 7}}')
        else:
            yield message


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ignored", [0, 12])
def test_too_many_rejected_messages_stop_the_worker(ignored: int, site: _Site) -> None:
    """Ignored records count neither as rejected nor as valid, so any number of them changes nothing."""
    site.write(_poisoned(site, 0.6, ignored))
    config = site.configure(site.encodings["nested"])
    for _ in range(2):
        with site.worker(config) as worker:
            worker.ends_with(4)
            found = re.search(r"(\d+) of the last (\d+) events were rejected \((.*?)\)", worker.said())
            assert found is not None
            rejected, counted = int(found[1]), int(found[2])
            assert _WINDOW <= counted <= _SCENARIO.responses
            assert rejected == pytest.approx(0.6 * counted, abs=2)
            assert found[3] == "limits.max_rejected_share = 0.5"
            assert "missing_field, timestamp: no value at payload.asked_at" in worker.said()
            assert "--accept-rejected" in worker.said()


@pytest.mark.timeout(400)
def test_fewer_rejected_messages_than_the_limit_do_not_stop_the_worker(site: _Site) -> None:
    """Two fifths are rejected; all other records of the partition are ignored or valid."""
    site.write(_poisoned(site, 0.4, 12))
    with site.worker(site.configure(site.encodings["nested"])) as worker:
        site.finish()
        assert worker.process.poll() is None
    assert len(site.records(site.dead_topic)) == 240
