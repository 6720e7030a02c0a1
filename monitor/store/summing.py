"""Chunks of time buckets that have become long are replaced by what they amount to (docs/decisions/0004-buckets.md)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from monitor.store.connection import unavailable
from monitor.store.redis import RedisStore
from monitor.store.rows import chunk_integers
from monitor.store.runs import as_run

_AT_ONCE: Final = 32
_TIMES: Final = 8


def sum_up(store: RedisStore) -> None:
    """Replace the runs of chunks that commits have found long; of the last of very many only the next time.

    It is for now and then: after each commit it would be waited for, and the next ones append to the same chunks.
    """
    with unavailable(store.settings):
        for _ in range(_TIMES):
            chunks = list(islice(store.long_chunks, _AT_ONCE))
            if not chunks:
                return
            keys: list[bytes] = []
            arguments: list[bytes] = []
            for chunk, stored in zip(chunks, store.rows(chunks), strict=True):
                # Others may have done so by now.
                if stored is not None and len(stored) >= store.long_chunks[chunk]:
                    keys.append(chunk)
                    arguments += (stored, as_run(chunk_integers(chunk, stored)))
            if keys:
                store.run_script(store.scripts.sum, keys, arguments)
            for chunk in chunks:
                del store.long_chunks[chunk]
