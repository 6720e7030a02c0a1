"""The whole store: all shards of a generation, on a server or on the masters of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from monitor.config import StoreSettings
from monitor.state.keys import StoreKeys, shard_of_partition
from monitor.state.redis_connection import connect, translating_errors
from monitor.state.store_records import Position
from monitor.state.store_shard import StoreShard


class ShardedStore:
    """The shards of a generation; only the first shard stores definitions, hash key and active generation."""

    def __init__(
        self,
        settings: StoreSettings,
        generation: int = 0,
        active_generation: int | None = None,
        *,
        shard_count: int = 1,
        client: Any = None,
        backfill: int | None = None,
    ) -> None:
        """With `backfill`, the number of an experiment, positions are those of the experiment's backfill."""
        self.settings = settings
        self.generation = generation
        self.active_generation = generation if active_generation is None else active_generation
        self.client: Any = client or connect(settings)
        self._shards = [
            StoreShard(
                settings,
                StoreKeys(generation, shard, shard_count),
                self.active_generation,
                self.client,
                backfill=backfill,
            )
            for shard in range(shard_count)
        ]
        self.first_shard = self._shards[0]

    def __getitem__(self, shard: int) -> StoreShard:
        return self._shards[shard]

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[StoreShard]:
        return iter(self._shards)

    def reconnect(self, *, backfill: int | None = None) -> ShardedStore:
        """Return the same shards on a separate connection, which expects the same version of declared experiments.

        With `backfill`, the number of an experiment, positions are those of the experiment's backfill.
        """
        store = ShardedStore(
            self.settings, self.generation, self.active_generation, shard_count=len(self), backfill=backfill
        )
        for shard, other in zip(store, self, strict=True):
            shard.experiments_version = other.experiments_version
        return store

    def read_positions(self) -> dict[str, Position]:
        """Return partition → position, as stored on the partition's shard."""
        return merge_positions([shard.read_positions() for shard in self._shards])

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def merge_positions(positions_by_shard: Sequence[Mapping[str, Position]]) -> dict[str, Position]:
    """Return the positions of all partitions, from the positions that each shard stores, in the order of the shards.

    If a shard stores the position of another shard's partition, the position is left out.
    """
    return {
        name: position
        for shard, positions in enumerate(positions_by_shard)
        for name, position in positions.items()
        if shard_of_partition(name, len(positions_by_shard)) == shard
    }


def read_newest_response_ms(shards: Iterable[StoreShard], experiment: int, variants: Iterable[int]) -> int | None:
    """Return the time of the newest response in some variants, on some shards; None before the first response."""
    fields = [f"{experiment}:{variant}:response" for variant in variants]
    times: list[bytes | None] = []
    for shard in shards:
        with translating_errors(shard.settings):
            times += shard.client.hmget(shard.keys.newest_times, fields)
    return max((int(time) for time in times if time is not None), default=None)
