"""The aggregates of events in any format, in the store after a service has read them from Kafka.

`FORMAT_TEST_EVENTS` is the number of events in each format, by default a few thousand.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from monitor.config import KafkaClientName, StoreSettings
from monitor.simulation import Scenario, generate_events, render_example_config
from monitor.state import ShardedStore
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, eventually, service
from tests.support.dump import Dump, dump
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.wire_formats import (
    FEEDBACK_TOPIC,
    RESPONSES_TOPIC,
    Encoding,
    Event,
    Message,
    configure,
    encodings,
    read_events,
    shared_encoding,
    shared_messages,
)

_EVENTS: Final = int(os.environ.get("FORMAT_TEST_EVENTS", "4000"))
_EVENTS_PER_RESPONSE: Final = 1.55
_SCENARIO: Final = Scenario(
    responses=round(_EVENTS / _EVENTS_PER_RESPONSE), students=max(_EVENTS // 10, 10), days=1, resent_share=0.05, seed=49
)
_PARTITIONS: Final = 4
_KAFKA: Final = 'max_poll_records = 200\ngroup_instance_id = "<worker>"'
_WITHIN_S: Final = 60 + _EVENTS / 250
_KILLS: Final = 4
_NAMES: Final[tuple[str, ...]] = ("nested", "framed", "avro", "protobuf", "structured", "binary", "debezium")


class _Formats:
    """A broker, a store and a registry, with the events and the aggregates of their native format."""

    def __init__(self, broker: KafkaBroker, server: RedisServer, registry: SchemaRegistryServer) -> None:
        self.broker = broker
        self.server = server
        self.registry = registry
        self.encodings: Mapping[str, Encoding] = encodings(registry)
        self.events: list[Event] = read_events(generate_events(_SCENARIO))
        self.expected: Dump = {}
        self._runs = 0

    def aggregates(
        self,
        directory: Path,
        encoding: Encoding,
        messages: Iterable[Message],
        client: KafkaClientName = "kafka-python",
        workers: int = 1,
        kills: int = 0,
    ) -> Dump:
        """Return the aggregates after workers have read the messages."""
        self._runs += 1
        name = f"formats-{time.monotonic_ns():x}"
        topics = {"response": f"{name}.responses", "feedback": f"{name}.feedback"}
        for topic in (*topics.values(), f"{name}.dead"):
            self.broker.create_topic(topic, _PARTITIONS)
        text = configure(render_example_config(_SCENARIO, http_port=0), encoding, self.registry.url)
        for old, new in (
            ("localhost:9092", self.broker.bootstrap),
            (RESPONSES_TOPIC, topics["response"]),
            (FEEDBACK_TOPIC, topics["feedback"]),
            ("ab-monitor.dead-letter", f"{name}.dead"),
            ('group_id = "ab-monitor"', f'group_id = "{name}"\nclient = "{client}"\n{_KAFKA}'),
            ("redis://localhost:6379/0", self.server.url),
        ):
            text = text.replace(old, new)
        configs = [directory / f"{name}-{number}.toml" for number in range(workers)]
        for number, config in enumerate(configs):
            config.write_text(text.replace("<worker>", f"worker-{number}"))
        todo = list(messages)
        part = -(-len(todo) // (kills + 1))
        self.server.client().flushall()
        chance = random.Random(49)
        with closing(ShardedStore(StoreSettings(url=self.server.url), shard_count=1)) as store, ExitStack() as stack:

            def applied() -> int:
                return sum(position.next_offset for position in store.read_positions().values())

            def start(number: int) -> subprocess.Popen[bytes]:
                log = directory / f"{name}-{number}.log"
                return stack.enter_context(service(configs[number], log, environ=HASHED))

            processes = [start(number) for number in range(workers)]
            for kill in range(kills + 1):
                written = min((kill + 1) * part, len(todo))
                before = applied()
                self._write(topics, todo[kill * part : written])
                eventually(
                    "more is applied",
                    lambda: applied() > before if kill < kills else applied() == written,  # noqa: B023
                    within_s=_WITHIN_S,
                    every_s=0.02,
                )
                if kill < kills:
                    time.sleep(chance.uniform(0, 0.1))
                    processes[kill % workers].kill()
                    processes[kill % workers].wait()
                    processes[kill % workers] = start(kill % workers)
            return dump(store)

    def _write(self, topics: Mapping[str, str], messages: Iterable[Message]) -> None:
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        )
        for message in messages:
            producer.produce(topics[message.kind], message.value, message.key, headers=list(message.headers))
        assert producer.flush(120) == 0


@pytest.fixture(scope="module")
def formats(
    tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker, redis_server: RedisServer
) -> Iterator[_Formats]:
    """Yield the servers, with the aggregates of the native format."""
    with SchemaRegistryServer() as registry:
        found = _Formats(kafka, redis_server, registry)
        native = found.encodings["native"]
        found.expected = found.aggregates(tmp_path_factory.mktemp("native"), native, native.messages(found.events))
        responses = sum(sums.get(0, 0) for key, sums in found.expected.items() if key.startswith(b"all_time_sums"))
        assert responses == _SCENARIO.responses
        yield found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "client"),
    [
        *((name, ("confluent", "kafka-python")[number % 2]) for number, name in enumerate(_NAMES)),
        ("native", "confluent"),
    ],
)
def test_a_format_gives_the_aggregates_of_the_native_format(
    name: str, client: KafkaClientName, formats: _Formats, tmp_path: Path
) -> None:
    """Integer for integer, with either client."""
    encoding = formats.encodings[name]
    assert formats.aggregates(tmp_path, encoding, encoding.messages(formats.events), client) == formats.expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_one_topic_with_five_types_gives_the_aggregates_of_the_native_format(
    client: KafkaClientName, formats: _Formats, tmp_path: Path
) -> None:
    """Responses, lists of feedback, and three types that the filters ignore."""
    messages = list(shared_messages(formats.events))
    assert formats.aggregates(tmp_path, shared_encoding(), messages, client) == formats.expected


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "client"), [("nested", "kafka-python"), ("avro", "confluent")])
def test_killed_workers_give_the_aggregates_of_the_native_format(
    name: str, client: KafkaClientName, formats: _Formats, tmp_path: Path
) -> None:
    """Two workers, which are killed in turn; derived ids are the same when a record is read again."""
    encoding = formats.encodings[name]
    found = formats.aggregates(tmp_path, encoding, encoding.messages(formats.events), client, workers=2, kills=_KILLS)
    assert found == formats.expected
