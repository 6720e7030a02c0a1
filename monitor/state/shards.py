"""The whole store: one shard or several, on one server or on the masters of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from monitor.config import StoreSettings
from monitor.state.keys import Keys, shard_of_partition
from monitor.state.redis_connection import connect, unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.store_records import Position


class Shards:
    """The shards of one generation; the first also holds what there is once: definitions, hash key, which is live."""

    def __init__(
        self,
        settings: StoreSettings,
        generation: int = 0,
        live: int | None = None,
        *,
        count: int = 1,
        client: Any = None,
    ) -> None:
        self.settings = settings
        self.generation = generation
        self.live = generation if live is None else live
        self.client: Any = client or connect(settings)
        self._shards = [
            RedisStore(settings, Keys(generation, shard, count), self.live, self.client) for shard in range(count)
        ]
        self.first = self._shards[0]

    def __getitem__(self, shard: int) -> RedisStore:
        return self._shards[shard]

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[RedisStore]:
        return iter(self._shards)

    def again(self) -> Shards:
        return Shards(self.settings, self.generation, self.live, count=len(self))

    def positions(self) -> dict[str, Position]:
        """Return how far every partition was applied, each as its own shard stores it."""
        return merge_positions([shard.positions() for shard in self._shards])

    def close(self) -> None:
        self.client.close()


def merge_positions(shards: Sequence[Mapping[str, Position]]) -> dict[str, Position]:
    """Return the positions of every shard's own partitions, in the order of the shards."""
    return {
        name: position
        for shard, positions in enumerate(shards)
        for name, position in positions.items()
        if shard_of_partition(name, len(shards)) == shard
    }


def newest_response_ms(shards: Iterable[RedisStore], experiment: int, variants: Iterable[int]) -> int | None:
    """Return the newest response's time over variants of an experiment, on some shards; None before the first."""
    fields = [f"{experiment}:{variant}:r" for variant in variants]
    times: list[bytes | None] = []
    for shard in shards:
        with unavailable(shard.settings):
            times += shard.client.hmget(shard.keys.latest, fields)
    return max((int(time) for time in times if time is not None), default=None)
