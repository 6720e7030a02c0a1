"""Time buckets of a chunk under exponential decay, weighted and added up: what `monitor.series` makes sums of.

One pass over the integers, as a scrape reads a hundred chunks. Compiled (deploy/native.py).
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_f64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from monitor.aggregates import BUCKETS_PER_CHUNK, LIMB_BITS

COLUMNS: Final = 8
"""Counts over rated and over all responses, offsets of both, totals, their moments, squares, theirs."""
WEIGHTS: Final = [2.0 ** ((bucket + 0.5) / BUCKETS_PER_CHUNK - 1) for bucket in range(BUCKETS_PER_CHUNK)]
"""Of the middles of a chunk's buckets, relative to its end: a chunk is as long as the half-life."""
_HEAD: Final = 4
_LIMB: Final = float(1 << LIMB_BITS)


def weigh(writer: BytesWriter, integers: vec[i64], metrics: i64, reached: i64) -> None:
    """Append what a chunk's buckets amount to, as 3·m·`COLUMNS` + 1 numbers, float64, little-endian.

    That is Σw·c and Σw²·c over the buckets before `reached` and the columns c of that bucket itself, each m × `COLUMNS`
    in units of offset and of fixed point; and 1 if there are responses after it, else 0. The integers are the buckets'
    records, `Layout.response_width` each.
    """
    width, size = _HEAD + COLUMNS * metrics, COLUMNS * metrics
    buckets = len(integers) // width
    columns, sums, squared = _zeros(size), _zeros(size), _zeros(size)
    bucket: i64 = 0
    while bucket < buckets and bucket < reached:
        _fill(columns, integers, bucket * width, metrics)
        weight: float = WEIGHTS[bucket]
        square = weight * weight
        at: i64 = 0
        while at < size:
            sums[at] += weight * columns[at]
            squared[at] += square * columns[at]
            at += 1
        bucket += 1
    if 0 <= reached < buckets:
        _fill(columns, integers, reached * width, metrics)
    else:
        columns = _zeros(size)
    ahead = 0.0
    bucket = reached + 1
    while bucket < buckets:
        if integers[bucket * width] > 0:
            ahead = 1.0
        bucket += 1
    _write(writer, sums)
    _write(writer, squared)
    _write(writer, columns)
    write_f64_le(writer, ahead)


def _zeros(size: i64) -> vec[float]:
    zeros = vec[float]()
    while len(zeros) < size:
        zeros = append(zeros, 0.0)
    return zeros


def _fill(columns: vec[float], integers: vec[i64], begin: i64, metrics: i64) -> None:
    """Replace columns by those of the bucket whose record begins there.

    Limbs are joined here, so that where a metric is 1 its totals are the counts, and stay so in any sum. Of squares
    only the sum is known: they are taken to be where the totals are, and what does not vary has no spread.
    """
    responses, rated = float(integers[begin]), integers[begin + 2]
    offset, rated_offset = float(integers[begin + 1]), integers[begin + 3]
    to: i64 = 0
    at = begin + _HEAD
    while to < COLUMNS * metrics:
        total = float(integers[at + 3]) * _LIMB + float(integers[at + 2])
        moment = float(integers[at + 5]) * _LIMB + float(integers[at + 4])
        square = float(integers[at + 7]) * _LIMB + float(integers[at + 6])
        columns[to] = float(rated - integers[at])
        columns[to + 1] = responses
        columns[to + 2] = float(rated_offset - integers[at + 1])
        columns[to + 3] = offset
        columns[to + 4] = total
        columns[to + 5] = moment
        columns[to + 6] = square
        columns[to + 7] = square * moment / max(total, 1.0)
        to += COLUMNS
        at += COLUMNS


def _write(writer: BytesWriter, numbers: vec[float]) -> None:
    at: i64 = 0
    while at < len(numbers):
        write_f64_le(writer, numbers[at])
        at += 1
