"""A Redis Cluster: masters, a replica of each if wanted, and slots that move between them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis
import redis.exceptions

from tests.servers.process import free_port, need
from tests.servers.redis import RedisServer, redis_binary

_KEYS_AT_ONCE = 100


class RedisCluster:
    """Servers of one cluster, each with its own directory."""

    def __init__(self, masters: int = 3, *, replicas: int = 0, node_timeout_ms: int = 3_000) -> None:
        self.servers = [
            RedisServer(
                redis_binary(),
                cluster_enabled="yes",
                cluster_node_timeout=str(node_timeout_ms),
                # The default, 10 000 above the other, is often beyond the last port.
                cluster_port=str(free_port()),
                cluster_config_file="nodes.conf",
            )
            for _ in range(masters * (1 + replicas))
        ]
        self._replicas = replicas
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where it is."""
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{places}"

    def client(self) -> Any:
        """Return a client of the whole cluster."""
        for server in self.servers:
            try:
                return redis.RedisCluster(host="127.0.0.1", port=server.port)
            except redis.exceptions.RedisClusterException:
                continue
        raise RuntimeError("no node of the cluster answers")

    def master_of(self, slot: int) -> RedisServer:
        """Return the server that holds a slot."""
        for server in self._alive():
            if any(first <= slot <= last for first, last, me in self._ranges(server) if me == server.port):
                return server
        raise RuntimeError(f"nobody holds slot {slot}")

    def move(self, slot: int, to: RedisServer, *, pause_s: float = 0.0) -> None:
        """Move a slot to another master, as redis-cli does, with a pause after every hundred keys."""
        source = self.master_of(slot)
        own, other = (server.client() for server in (source, to))
        own_id, other_id = (str(client.execute_command("CLUSTER", "MYID").decode()) for client in (own, other))
        other.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", own_id)
        own.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", other_id)
        while keys := own.execute_command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
            own.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            time.sleep(pause_s)
        for server in self._alive():
            with server.client() as client:
                if client.info("replication")["role"] == "master":
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", other_id)

    def _alive(self) -> Iterator[RedisServer]:
        for server in self.servers:
            try:
                with server.client() as client:
                    client.ping()
            except redis.exceptions.ConnectionError:
                continue
            yield server

    def _ranges(self, server: RedisServer) -> list[tuple[int, int, int]]:
        with server.client() as client:
            return [
                (int(first), int(last), int(master[1]))
                for first, last, master, *_ in client.execute_command("CLUSTER", "SLOTS", NEVER_DECODE=True)
            ]

    def __enter__(self) -> Self:
        for server in self.servers:
            self._stack.enter_context(server)
        places = [f"127.0.0.1:{server.port}" for server in self.servers]
        command = [need("redis-cli", "redis-tools"), "--cluster", "create", *places]
        subprocess.run(
            [*command, "--cluster-replicas", str(self._replicas), "--cluster-yes"],
            check=True,
            timeout=60,
            capture_output=True,
        )
        deadline = time.monotonic() + 60
        while not all(self._whole(server) for server in self.servers):
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster did not form")
            time.sleep(0.1)
        return self

    def _whole(self, server: RedisServer) -> bool:
        with server.client() as client:
            state = client.execute_command("CLUSTER", "INFO")
            text = state if isinstance(state, dict) else dict(line.split(":") for line in state.decode().split())
            linked = client.info("replication").get("master_link_status", "up") == "up"
            return bool(text["cluster_state"] == "ok" and linked)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
