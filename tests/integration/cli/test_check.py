"""The reports of `ab-monitor check` on a Kafka cluster and the topics."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

import pytest
from kafka import KafkaProducer

from monitor.cli import check
from monitor.cli.check import _check_channels
from monitor.config import KafkaSettings, NotifySettings, Settings
from monitor.errors import DependencyUnavailable, UsageError
from monitor.sources.copartitioning import check_copartitioning
from monitor.sources.kafka_connection import inspect_kafka_topics
from tests.servers.kafka import KafkaBroker
from tests.servers.message_receiver import MessageReceiver
from tests.servers.redis import RedisServer
from tests.support.streams import SETTINGS
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

_USERS = [f"student-{number}" for number in range(20)]


@pytest.fixture
def settings(kafka: KafkaBroker) -> Settings:
    """Return settings with topics that do not exist yet."""
    name = f"check-{random.randrange(1 << 40):x}"
    return replace(SETTINGS, kafka=KafkaSettings(kafka.bootstrap, f"{name}.r", f"{name}.f", f"{name}.d"))


def _create_topics(kafka: KafkaBroker, settings: Settings, responses: int, feedback: int) -> None:
    kafka.create_topic(settings.kafka.responses_topic, responses)
    kafka.create_topic(settings.kafka.feedback_topic, feedback)
    kafka.create_topic(settings.kafka.dead_letter_topic, 1)


def _write(settings: Settings, feedback_key: Callable[[str], str]) -> None:
    """Write a response and feedback of each user, one of each without user_id, and one record that is no event."""
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)
    for user in _USERS:
        response, feedback = {**RESPONSE, "user_id": user}, {**FEEDBACK, "user_id": user}
        producer.send(settings.kafka.responses_topic, json.dumps(response).encode(), user.encode())
        producer.send(settings.kafka.feedback_topic, json.dumps(feedback).encode(), feedback_key(user).encode())
    for topic, event in ((settings.kafka.responses_topic, RESPONSE), (settings.kafka.feedback_topic, FEEDBACK)):
        anonymous = {name: value for name, value in event.items() if name != "user_id"}
        producer.send(topic, json.dumps(anonymous).encode())
    producer.send(settings.kafka.feedback_topic, b"{")
    producer.close()


def test_unsafe_topics_are_reported(kafka: KafkaBroker, settings: Settings) -> None:
    """Topics with different numbers of partitions, and a dead-letter topic for smaller records."""
    kafka.create_topic(settings.kafka.responses_topic, 2, {"max.message.bytes": "20000000"})
    kafka.create_topic(settings.kafka.feedback_topic, 3)
    kafka.create_topic(settings.kafka.dead_letter_topic, 1)
    inspection = inspect_kafka_topics(settings.kafka)
    partitions_warning, size_warning = inspection.warnings
    assert "the same number of partitions" in partitions_warning
    assert size_warning.startswith(f"max.message.bytes of {settings.kafka.dead_letter_topic} is less than 20000000")
    assert not inspection.missing_topics


def test_a_missing_topic_is_an_error_with_the_most_similar_topics(
    kafka: KafkaBroker, settings: Settings, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 3; the state of all topics is printed before."""
    redis_server.client().flushall()
    kafka.create_topic(settings.kafka.responses_topic, 2)
    kafka.create_topic(settings.kafka.feedback_topic, 2)
    misspelt = replace(
        settings,
        kafka=replace(settings.kafka, responses_topic=f"{settings.kafka.responses_topic}esponses"),
        store=replace(settings.store, url=redis_server.url, user_hash_key=None),
    )
    with pytest.raises(DependencyUnavailable) as caught:
        check.run(Namespace(sample=None, notify=False), misspelt)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert f"topic {misspelt.kafka.responses_topic} does not exist; the most similar topics are " in message
    assert settings.kafka.responses_topic in message.partition("the most similar topics are ")[2]
    assert "correct kafka.responses_topic" in message
    assert "correct kafka.dead_letter_topic" in message
    assert f"kafka          topic {settings.kafka.feedback_topic}: 2 partitions\n" in capsys.readouterr().out


class TestCopartitioningCheck:
    """A store of several shards needs a user's records of both topics in the same partition number."""

    def test_topics_with_the_same_key_are_accepted(self, kafka: KafkaBroker, settings: Settings) -> None:
        """Records without user_id and records that are no events are counted."""
        _create_topics(kafka, settings, 4, 4)
        _write(settings, lambda user: user)
        assert check_copartitioning(settings, 2) == (
            "co-partitioned: 20 users with both responses and feedback "
            "in 43 recent records (2 without user_id, 1 rejected)"
        )  # fmt: skip

    def test_topics_with_different_keys_are_rejected(self, kafka: KafkaBroker, settings: Settings) -> None:
        """The error has the partition numbers and the remedy."""
        _create_topics(kafka, settings, 4, 4)
        _write(settings, lambda user: user[::-1])
        with pytest.raises(
            UsageError,
            match=r"\d+ of 20 users with records in partitions of different numbers, such as \d and \d, in 43 recent "
            r"records .*store\.shards = 2 needs co-partitioned topics.*both keyed by user_id with the same partitioner",
        ):
            check_copartitioning(settings, 2)

    def test_different_numbers_of_partitions_are_rejected(self, kafka: KafkaBroker, settings: Settings) -> None:
        """No records are read."""
        _create_topics(kafka, settings, 4, 3)
        with pytest.raises(
            UsageError, match=r"\.r has 4 partitions, topic \S+\.f has 3 partitions; store\.shards = 5 needs"
        ):
            check_copartitioning(settings, 5)

    def test_topics_without_common_users_are_not_verified(self, kafka: KafkaBroker, settings: Settings) -> None:
        """New topics have no common users yet."""
        _create_topics(kafka, settings, 2, 2)
        line = check_copartitioning(settings, 2)
        assert line is not None
        assert line.startswith(
            "co-partitioning not verified: no user has both responses and feedback in 0 recent records"
        )

    def test_missing_topics_are_not_an_error_of_this_check(self, settings: Settings) -> None:
        """`inspect_kafka_topics` reports missing topics."""
        assert check_copartitioning(settings, 2) is None

    def test_only_a_store_of_several_shards_is_checked(
        self, kafka: KafkaBroker, settings: Settings, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One shard accepts any keys."""
        redis_server.client().flushall()
        _create_topics(kafka, settings, 4, 4)
        _write(settings, lambda user: user[::-1])
        store = replace(settings.store, url=redis_server.url, user_hash_key=None)
        assert check.run(Namespace(sample=None, notify=False), replace(settings, store=replace(store, shards=1))) == 0
        assert "co-partition" not in capsys.readouterr().out
        with pytest.raises(UsageError, match="co-partitioned topics"):
            check.run(Namespace(sample=None, notify=False), replace(settings, store=replace(store, shards=2)))
        assert "store          ok: reachable" in capsys.readouterr().out


class TestChannels:
    """`check --notify` sends a test message to each channel of `[[notify]]`."""

    def test_each_channel_is_tried_and_the_failed_ones_are_named(
        self, settings: Settings, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A failure of a channel does not stop the checks; the address is not in the text."""
        with MessageReceiver() as good, MessageReceiver() as bad:
            bad.status = 403
            channels = tuple(
                NotifySettings(name, url=f"json://{receiver.address}/token")
                for name, receiver in (("bad", bad), ("good", good))
            )
            _check_channels(replace(settings, notify=channels), is_test=False)
            assert (good.requests, bad.requests) == ([], [])
            with pytest.raises(DependencyUnavailable, match=r"^notify\.bad: Apprise could not .*: HTTP 403$"):
                _check_channels(replace(settings, notify=channels), is_test=True)
            assert [request.json()["title"] for request in good.requests] == ["[AB Monitor] test of a channel"]
        output = capsys.readouterr().out
        assert "notify         ok: good, test message sent" in output
        assert "messages have no links: set http.public_url" in output
        assert "token" not in output

    def test_a_test_without_channels_is_an_error(self, settings: Settings) -> None:
        """Nothing would be tested."""
        with pytest.raises(UsageError, match=r"^--notify: the configuration has no \[\[notify\]\] table"):
            _check_channels(settings, is_test=True)
