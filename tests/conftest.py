"""Fixtures: real servers, one of each kind for the whole run, and the shared material."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary, valkey_binary

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_sessionstart() -> None:
    """Refuse to test what is not there any more: compiled modules that are older than their sources."""
    for compiled in (Path(__file__).parents[1] / "monitor").rglob("*.so"):
        for suffix in (".py", ".c"):
            source = compiled.parent / f"{compiled.name.partition('.')[0]}{suffix}"
            if source.exists() and source.stat().st_mtime > compiled.stat().st_mtime:
                pytest.exit(f"{source} has changed since it was compiled: make check, or python deploy/native.py", 2)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of worked examples beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the worked examples (../shared) are not here")
    return folder


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """Yield a broker for the whole run; tests make topics of their own."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Yield a Redis for the whole run; tests empty it first."""
    with RedisServer(redis_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """Yield a Valkey for the whole run; tests empty it first."""
    with RedisServer(valkey_binary()) as server:
        yield server


@pytest.fixture(params=["redis", "valkey"])
def store_server(request: pytest.FixtureRequest) -> RedisServer:
    """Return each kind of store."""
    server: RedisServer = request.getfixturevalue(f"{request.param}_server")
    server.client().flushall()
    return server
