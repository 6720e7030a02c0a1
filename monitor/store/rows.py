"""Records and chunks of time buckets as the store keeps them: bytes → integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from librt.strings import BytesWriter
from librt.vecs import extend, vec
from mypy_extensions import i64

from monitor.aggregates import Ints
from monitor.engine.row_codec import damaged
from monitor.store.runs import add_runs, summed
from monitor.weighing import weigh


def decode_record(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a record over responses or students, none if there is nothing; raises `StoreOwned`."""
    if stored is not None and len(stored) % 8:
        raise damaged(key.decode(), f"{len(stored)} bytes are no whole number of integers")
    return np.frombuffer(stored or b"", dtype=">i8").astype(np.int64)


def decode_records(keys: Sequence[bytes], stored: Sequence[bytes | None], width: int) -> Ints:
    """Return the integers of records as rows of a table, zeros for what was not written; raises `StoreOwned`."""
    for key, record in zip(keys, stored, strict=True):
        if record is not None and (len(record) % 8 or len(record) > 8 * width):
            raise damaged(key.decode(), f"{len(record)} bytes are no {width} integers or fewer")
    whole = b"".join([(record or b"").ljust(8 * width, b"\0") for record in stored])
    return np.frombuffer(whole, dtype=">i8").reshape(-1, width).astype(np.int64)


def chunk_integers(key: bytes, stored: bytes) -> bytes:
    """Return the integers of a chunk of time buckets as a record has them; raises `StoreOwned` for what is no chunk."""
    try:
        return summed(stored)
    except ValueError as error:
        raise damaged(key.decode(), error) from None


def weigh_chunk(
    writer: BytesWriter,
    nothing: vec[i64],
    keys: Sequence[bytes],
    stored: Sequence[bytes | None],
    metrics: i64,
    reached: i64,
) -> None:
    """Append what `weigh` says of a chunk over all shards; raises `StoreOwned` for what is none.

    `nothing` is as many zeros as a chunk has integers.
    """
    integers = extend(vec[i64](), nothing)
    for key, runs in zip(keys, stored, strict=True):
        if runs is not None:
            try:
                integers = add_runs(integers, runs)
            except ValueError as error:
                raise damaged(key.decode(), error) from None
            if len(integers) > len(nothing):
                raise damaged(key.decode(), f"{len(integers)} integers, expected {len(nothing)} or fewer")
    weigh(writer, integers, metrics, reached)
