"""Brokers that advertise addresses which this machine cannot reach, while a bootstrap server answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from monitor.config import KafkaClientName, KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.sources import KafkaSource, inspect_kafka_topics
from monitor.sources.kafka_connection import advertised_address_problem
from tests.servers.kafka import KafkaBroker, Listener

SETTINGS = KafkaSettings(responses_topic="responses", feedback_topic="feedback", dead_letter_topic="dead")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Yield a broker with a listener that advertises a host name without an address."""
    with KafkaBroker([Listener("WRONG", "PLAINTEXT", advertised="kafka.invalid:9092")]) as broker:
        for topic in (SETTINGS.responses_topic, SETTINGS.feedback_topic, SETTINGS.dead_letter_topic):
            broker.create_topic(topic, 1)
        yield broker


@pytest.mark.parametrize("client", get_args(KafkaClientName))
def test_the_advertised_address_is_reported_with_the_setting_of_the_broker(
    broker: KafkaBroker, client: KafkaClientName
) -> None:
    """The bootstrap address answers, so its name alone would mislead."""
    settings = replace(SETTINGS, bootstrap_servers=broker.address("WRONG"), client=client)
    for connect in (inspect_kafka_topics, KafkaSource):
        with pytest.raises(DependencyUnavailable, match=r"kafka\.invalid:9092 .*Set advertised\.listeners"):
            connect(settings)


def test_reachable_addresses_and_absent_brokers_are_no_such_problem(broker: KafkaBroker) -> None:
    """An absent broker has advertised nothing."""
    assert advertised_address_problem(KafkaSettings(bootstrap_servers=broker.bootstrap)) is None
    assert advertised_address_problem(KafkaSettings(bootstrap_servers="127.0.0.1:1")) is None
