"""The fast half of the catalogue; `make faults` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monitor.config import KafkaClientName
from tests.faults import clusters, inputs, kafkas, stores, workers  # noqa: F401  they fill the catalogue
from tests.faults.arena import Expectations
from tests.faults.catalogue import CATALOGUE, Fault, Ground
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker) -> Iterator[Ground]:
    """Yield a place for faults."""
    directory = tmp_path_factory.mktemp("faults")
    with RedisServer(redis_binary()) as calm:
        yield Ground(directory, kafka, Expectations(directory, calm))


WITH_LIBRDKAFKA = ("Consumer stalls", "History lost to retention, continue")
"""What rests on the client most; `make faults ARGS=--confluent` runs all with it."""
RUNS = [(each, "kafka-python") for each in CATALOGUE if each.fast]
RUNS += [(each, "confluent") for each in CATALOGUE if each.name in WITH_LIBRDKAFKA]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("fault", "client"), RUNS, ids=[f"{fault.name}-{client}" for fault, client in RUNS])
def test_nothing_is_lost_and_nothing_counts_twice(fault: Fault, client: KafkaClientName, ground: Ground) -> None:
    """Integer for integer, the store holds what an undisturbed run leaves."""
    ground.client = client
    result = fault.run(ground)
    assert result.got == result.expected
    assert result.equal, result.note
