"""The fast half of the catalogue; `make faults` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", [each for each in CATALOGUE if each.fast], ids=lambda fault: fault.name)
def test_nothing_is_lost_and_nothing_counts_twice(fault: Fault, ground: Ground) -> None:
    """Integer for integer, the store holds what an undisturbed run leaves."""
    result = fault.run(ground)
    assert result.got == result.expected
    assert result.equal
