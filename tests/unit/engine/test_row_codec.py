"""Unit tests of encoded response rows: every row is decoded to an equal row, and damaged bytes are rejected."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import decode as unpackb
from msgspec.msgpack import encode as packb

from monitor.engine.id_hash import ITEM_HASH_BYTES, STUDENT_HASH_BYTES, STUDENT_TAG_BYTES, IdHasher
from monitor.engine.response_row import (
    MAX_REACTIONS,
    MISSING,
    NO_RESPONSE,
    Reaction,
    ResponseRow,
    reaction_from_feedback,
)
from monitor.engine.row_codec import (
    decode_response_row,
    encode_response_row,
)
from monitor.errors import CorruptStore
from monitor.events import Feedback
from monitor.events.schema import MAX_LATENCY_MS, MAX_POSITION
from monitor.events.timestamps import MAX_TIMESTAMP_MS

AT_MS = 1_793_577_600_000
STUDENT = bytes(range(STUDENT_HASH_BYTES))
ITEMS = bytes(range(100, 100 + 5 * ITEM_HASH_BYTES))

_times = st.one_of(st.integers(0, MAX_TIMESTAMP_MS), st.integers(AT_MS - 10**8, AT_MS + 10**8))
_strings = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
_kinds = st.one_of(
    st.sampled_from(["rating", "clicked", "watched", "helpful", "escalated", "reviewed"]),
    _strings.map(lambda kind: kind[:64]),
)
_scores = st.one_of(
    st.integers(0, 300).map(float), st.floats(0, allow_infinity=False, allow_nan=False), st.sampled_from([255.0, 256.0])
)


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


@st.composite
def _rows(draw: st.DrawFn) -> ResponseRow:
    student = draw(st.one_of(st.just(b""), _bytes(STUDENT_HASH_BYTES)))
    items = draw(st.lists(_bytes(ITEM_HASH_BYTES), max_size=8, unique=True))
    if draw(st.integers(0, 9)) == 0:
        items = [number.to_bytes(ITEM_HASH_BYTES) for number in range(draw(st.sampled_from([254, 255, 256, 1000])))]
    ranks = st.lists(st.integers(1, MAX_POSITION), min_size=len(items), max_size=len(items), unique=True).map(tuple)
    reactions = st.tuples(
        _times,
        _strings,
        st.one_of(st.sampled_from([b"", student[:STUDENT_TAG_BYTES]]), _bytes(STUDENT_TAG_BYTES)),
        st.one_of(st.sampled_from([b"", *items]), _bytes(ITEM_HASH_BYTES)),
        _kinds,
        _scores,
    )
    return ResponseRow(
        draw(_times),
        draw(st.one_of(st.just(NO_RESPONSE), st.integers(0, (1 << 31) - 1))),
        student,
        b"".join(items),
        draw(st.one_of(st.none(), ranks)) if len(items) < 10 else None,
        draw(st.one_of(st.just(MISSING), st.integers(0, MAX_LATENCY_MS))),
        draw(st.one_of(st.just(MISSING), st.integers(0, 100_000))),
        tuple(sorted(draw(st.lists(reactions, max_size=9, unique=True)))),
        draw(st.integers(0, (1 << 31) - 1)),
    )


def _content(row: ResponseRow) -> tuple[Any, ...]:
    return (
        row.timestamp_ms, row.variant_key, row.student_hash, row.item_hashes, row.ranks, row.latency_ms, row.category,
        row.reactions, row.version,
    )  # fmt: skip


def _reaction(
    number: int = 0, item: bytes = ITEMS[:ITEM_HASH_BYTES], kind: str = "rating", score: float = 4.0
) -> Reaction:
    return AT_MS + 60_000 + number, f"f-{number}", STUDENT[:STUDENT_TAG_BYTES], item, kind, score


def _row(*reactions: Reaction) -> ResponseRow:
    return ResponseRow(AT_MS, 256, STUDENT, ITEMS, None, 412, 3, reactions, 1)


@given(_rows())
def test_every_encoded_row_is_decoded_to_an_equal_row(row: ResponseRow) -> None:
    """With times from 1970 to 9999, ids in any script, gaps between positions, and reactions before the response."""
    assert _content(decode_response_row(encode_response_row(row))) == _content(row)


def test_rows_with_any_number_of_reactions_are_decoded_to_equal_rows() -> None:
    """From no reaction to the maximum."""
    for count in (0, 1, 6, 7, 8, MAX_REACTIONS):
        row = _row(*map(_reaction, range(count)))
        assert _content(decode_response_row(encode_response_row(row))) == _content(row)


def test_encoded_bytes_have_the_documented_format() -> None:
    """Version, variant key and time have fixed offsets, which commit.lua and expire.lua read; msgpack follows."""
    stored = encode_response_row(_row(_reaction()))
    assert stored[:16] == bytes.fromhex("00000001 00000100") + AT_MS.to_bytes(8)
    assert unpackb(stored[16:]) == [None, STUDENT, ITEMS, None, 412, 3, [list(_reaction())]]
    assert len(encode_response_row(_row())) == 68


def test_zero_and_negative_zero_scores_have_equal_bytes() -> None:
    """JSON may contain -0.0, which equals 0."""
    zero, minus_zero = (
        reaction_from_feedback(Feedback("f", "r", AT_MS, "rating", "s", "v", score), IdHasher(b"key"))
        for score in (0.0, -0.0)
    )
    assert encode_response_row(_row(zero)) == encode_response_row(_row(minus_zero))


@pytest.mark.parametrize(
    "row",
    [
        _row(),
        _row(_reaction(), _reaction(1, b"", "custom kind", 0.25)),
        ResponseRow(AT_MS, NO_RESPONSE, reactions=tuple(_reaction(number) for number in range(-9, 1))),
        ResponseRow(
            AT_MS,
            257,
            b"",
            ITEMS,
            (1, 2, 3, 5, 900),
            MISSING,
            MISSING,
            ((AT_MS - 1, "é", b"t" * 6, b"i" * 6, "é", 0.5),),
        ),
    ],
)
def test_damaged_bytes_are_rejected_or_decoded_to_a_valid_row(row: ResponseRow) -> None:
    """Bytes are truncated, extended by a byte, or have a flipped bit; a decoded row can be encoded again."""
    stored = encode_response_row(row)
    for length in range(len(stored)):
        with pytest.raises(CorruptStore, match="the row of a response is damaged"):
            decode_response_row(stored[:length])
    with pytest.raises(CorruptStore, match="trailing characters"):
        decode_response_row(stored + b"\0")
    for index in range(len(stored)):
        for bit in range(8):
            _check_decoding(stored[:index] + bytes([stored[index] ^ 1 << bit]) + stored[index + 1 :])


def _check_decoding(stored: bytes) -> None:
    try:
        row = decode_response_row(stored)
    except CorruptStore:
        return
    assert _content(decode_response_row(encode_response_row(row))) == _content(row)


def test_random_bytes_are_rejected_or_decoded_to_a_valid_row() -> None:
    """Decoding raises no other exception than `CorruptStore`; most of the random bytes prefix like a valid row."""
    random_source = random.Random(7)
    prefix = encode_response_row(_row(_reaction()))[:20]
    for _ in range(20_000):
        _check_decoding(
            prefix[: random_source.choice((0, 8, 16, 20))] + random_source.randbytes(random_source.randrange(80))
        )


_VALID_BODY: list[Any] = [STUDENT, ITEMS, None, 412, 3, [[AT_MS, "f", b"", ITEMS[:6], "rating", 4.0]]]


def _body_with(index: int, value: Any) -> list[Any]:
    return [*_VALID_BODY[:index], value, *_VALID_BODY[index + 1 :]]


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        ((1, -2, AT_MS), _VALID_BODY, "variant key -2"),
        ((1, 256, 1 << 48), _VALID_BODY, f"time {1 << 48}"),
        ((1, 256, AT_MS), _body_with(0, b"student"), "a student of 7 bytes"),
        ((1, 256, AT_MS), _body_with(1, ITEMS[1:]), "items of 29 bytes"),
        ((1, 256, AT_MS), _body_with(2, [1, 2]), r"ranks \(1, 2\)"),
        ((1, 256, AT_MS), _body_with(3, -2), "latency -2"),
        ((1, 256, AT_MS), _body_with(4, -2), "category -2"),
        ((1, 256, AT_MS), _body_with(4, "math"), "Expected `int`, got `str`"),
        ((1, 256, AT_MS), _body_with(5, _VALID_BODY[5] * (MAX_REACTIONS + 1)), "1001 reactions"),
        ((1, 256, AT_MS), _body_with(5, [[-1, "f", b"", b"", "rating", 4.0]]), "a reaction at -1 ms"),
        ((1, 256, AT_MS), _body_with(5, [[1 << 48, "f", b"", b"", "rating", 4.0]]), "a reaction at"),
        ((1, 256, AT_MS), _body_with(5, [[AT_MS, "f", b"", b"item", "rating", 4.0]]), "4 bytes of item"),
        ((1, 256, AT_MS), _body_with(5, [[AT_MS, "f", b"tag", b"", "rating", 4.0]]), "3 bytes of student"),
        ((1, 256, AT_MS), _body_with(5, [[AT_MS, "f", b"", b"", "rating", -0.5]]), "a score of -0.5"),
        ((1, 256, AT_MS), _body_with(5, [[AT_MS, "f", b"", b"", "rating", float("inf")]]), "a score of inf"),
        ((1, 256, AT_MS), _body_with(5, [[AT_MS, "f", b"", b"", "rating", float("nan")]]), "a score of nan"),
        ((1, 256, AT_MS), _VALID_BODY[:5], "Expected `array` of length 7"),
    ],
)
def test_invalid_values_raise_corrupt_store(head: tuple[int, int, int], body: list[Any], reason: str) -> None:
    """The message has the invalid value and the command that repairs the store."""
    with pytest.raises(CorruptStore, match=rf"the row of a response is damaged \(.*{reason}.*ab-monitor rebuild"):
        decode_response_row(struct.pack(">IiQ", *head) + packb([None, *body]))
