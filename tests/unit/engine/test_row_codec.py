"""Rows of responses as bytes: whatever a row can be comes back, and whatever is no row is refused in a line."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import decode as unpackb
from msgspec.msgpack import encode as packb

from monitor.engine.id_hash import ITEM_BYTES, STUDENT_BYTES, TAG_BYTES, IdHasher
from monitor.engine.response_row import MAX_REACTIONS, MISSING, NO_RESPONSE, Reaction, ResponseRow, reaction_of
from monitor.engine.row_codec import (
    decode_response,
    encode_response,
)
from monitor.errors import StoreOwned
from monitor.events import Feedback
from monitor.events.schema import MAX_LATENCY_MS, MAX_POSITION
from monitor.events.timestamps import LATEST_MS

AT_MS = 1_793_577_600_000
STUDENT = bytes(range(STUDENT_BYTES))
ITEMS = bytes(range(100, 100 + 5 * ITEM_BYTES))

_times = st.one_of(st.integers(0, LATEST_MS), st.integers(AT_MS - 10**8, AT_MS + 10**8))
_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
_kinds = st.one_of(
    st.sampled_from(["rating", "clicked", "watched", "helpful", "escalated", "reviewed"]),
    _texts.map(lambda kind: kind[:64]),
)
_scores = st.one_of(
    st.integers(0, 300).map(float), st.floats(0, allow_infinity=False, allow_nan=False), st.sampled_from([255.0, 256.0])
)


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


@st.composite
def _rows(draw: st.DrawFn) -> ResponseRow:
    student = draw(st.one_of(st.just(b""), _bytes(STUDENT_BYTES)))
    items = draw(st.lists(_bytes(ITEM_BYTES), max_size=8, unique=True))
    if draw(st.integers(0, 9)) == 0:
        items = [number.to_bytes(ITEM_BYTES) for number in range(draw(st.sampled_from([254, 255, 256, 1000])))]
    ranks = st.lists(st.integers(1, MAX_POSITION), min_size=len(items), max_size=len(items), unique=True).map(tuple)
    reactions = st.tuples(
        _times,
        _texts,
        st.one_of(st.sampled_from([b"", student[:TAG_BYTES]]), _bytes(TAG_BYTES)),
        st.one_of(st.sampled_from([b"", *items]), _bytes(ITEM_BYTES)),
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
        row.timestamp_ms, row.arm, row.student, row.items, row.ranks, row.latency_ms, row.category, row.reactions,
        row.version,
    )  # fmt: skip


def _reaction(number: int = 0, item: bytes = ITEMS[:ITEM_BYTES], kind: str = "rating", score: float = 4.0) -> Reaction:
    return AT_MS + 60_000 + number, f"f-{number}", STUDENT[:TAG_BYTES], item, kind, score


def _row(*reactions: Reaction) -> ResponseRow:
    return ResponseRow(AT_MS, 256, STUDENT, ITEMS, None, 412, 3, reactions, 1)


@given(_rows())
def test_every_row_comes_back(row: ResponseRow) -> None:
    """Times from 1970 to 9999, ids in any script, gaps in the positions, reactions of before the response."""
    assert _content(decode_response(encode_response(row))) == _content(row)


def test_as_many_reactions_as_a_row_keeps_come_back() -> None:
    """At the limit, and around where their number no longer fits the flags."""
    for many in (0, 1, 6, 7, 8, MAX_REACTIONS):
        row = _row(*map(_reaction, range(many)))
        assert _content(decode_response(encode_response(row))) == _content(row)


def test_the_bytes_are_those_that_are_documented() -> None:
    """Version, arm and time at fixed places, which commit.lua and sweep.lua read, then msgpack."""
    stored = encode_response(_row(_reaction()))
    assert stored[:16] == bytes.fromhex("00000001 00000100") + AT_MS.to_bytes(8)
    assert unpackb(stored[16:]) == [None, STUDENT, ITEMS, None, 412, 3, [list(_reaction())]]
    assert len(encode_response(_row())) == 68


def test_equal_scores_are_equal_bytes() -> None:
    """JSON may have -0.0, which is equal to 0."""
    zero, minus_zero = (
        reaction_of(Feedback("f", "r", AT_MS, "rating", "s", "v", score), IdHasher(b"key")) for score in (0.0, -0.0)
    )
    assert encode_response(_row(zero)) == encode_response(_row(minus_zero))


@pytest.mark.parametrize(
    "row",
    [
        _row(),
        _row(_reaction(), _reaction(1, b"", "a kind of its own", 0.25)),
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
def test_damage_is_refused_or_makes_another_row(row: ResponseRow) -> None:
    """Cut anywhere, with a byte more, or with any bit turned round; what makes a row can be written again."""
    stored = encode_response(row)
    for length in range(len(stored)):
        with pytest.raises(StoreOwned, match="the row of a response is damaged"):
            decode_response(stored[:length])
    with pytest.raises(StoreOwned, match="trailing characters"):
        decode_response(stored + b"\0")
    for place in range(len(stored)):
        for bit in range(8):
            _read(stored[:place] + bytes([stored[place] ^ 1 << bit]) + stored[place + 1 :])


def _read(stored: bytes) -> None:
    try:
        row = decode_response(stored)
    except StoreOwned:
        return
    assert _content(decode_response(encode_response(row))) == _content(row)


def test_noise_is_refused_or_makes_a_row() -> None:
    """Nothing but `StoreOwned`, whatever the bytes; half of them begin as a row does."""
    chance = random.Random(7)
    begin = encode_response(_row(_reaction()))[:20]
    for _ in range(20_000):
        _read(begin[: chance.choice((0, 8, 16, 20))] + chance.randbytes(chance.randrange(80)))


_SOUND: list[Any] = [STUDENT, ITEMS, None, 412, 3, [[AT_MS, "f", b"", ITEMS[:6], "rating", 4.0]]]


def _with(index: int, value: Any) -> list[Any]:
    return [*_SOUND[:index], value, *_SOUND[index + 1 :]]


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        ((1, -2, AT_MS), _SOUND, "arm -2"),
        ((1, 256, 1 << 48), _SOUND, f"time {1 << 48}"),
        ((1, 256, AT_MS), _with(0, b"student"), "a student of 7 bytes"),
        ((1, 256, AT_MS), _with(1, ITEMS[1:]), "items of 29"),
        ((1, 256, AT_MS), _with(2, [1, 2]), r"ranks \(1, 2\)"),
        ((1, 256, AT_MS), _with(3, -2), "latency -2"),
        ((1, 256, AT_MS), _with(4, -2), "category -2"),
        ((1, 256, AT_MS), _with(4, "math"), "Expected `int`, got `str`"),
        ((1, 256, AT_MS), _with(5, _SOUND[5] * (MAX_REACTIONS + 1)), "1001 reactions"),
        ((1, 256, AT_MS), _with(5, [[-1, "f", b"", b"", "rating", 4.0]]), "a reaction at -1 ms"),
        ((1, 256, AT_MS), _with(5, [[1 << 48, "f", b"", b"", "rating", 4.0]]), "a reaction at"),
        ((1, 256, AT_MS), _with(5, [[AT_MS, "f", b"", b"item", "rating", 4.0]]), "4 bytes of item"),
        ((1, 256, AT_MS), _with(5, [[AT_MS, "f", b"tag", b"", "rating", 4.0]]), "3 bytes of student"),
        ((1, 256, AT_MS), _with(5, [[AT_MS, "f", b"", b"", "rating", -1.0]]), "a score of -1.0"),
        ((1, 256, AT_MS), _with(5, [[AT_MS, "f", b"", b"", "rating", float("inf")]]), "a score of inf"),
        ((1, 256, AT_MS), _with(5, [[AT_MS, "f", b"", b"", "rating", float("nan")]]), "a score of nan"),
        ((1, 256, AT_MS), _SOUND[:5], "Expected `array` of length 7"),
    ],
)
def test_values_that_no_row_has_are_damage(head: tuple[int, int, int], body: list[Any], reason: str) -> None:
    """The error has the value and the command to run."""
    with pytest.raises(StoreOwned, match=rf"the row of a response is damaged \(.*{reason}.*ab-monitor rebuild"):
        decode_response(struct.pack(">IiQ", *head) + packb([None, *body]))
