"""Fixtures of the tests with several workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.replicas import Replicas


@pytest.fixture
def replicas(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer, request: pytest.FixtureRequest
) -> Iterator[Replicas]:
    """Yield two replicas that are not started, with topics of their own."""
    name = f"changing-{random.Random(request.node.name).randrange(10**9)}"
    opened = Replicas(tmp_path, kafka, redis_server, name)
    with opened.stack:
        yield opened
