"""Rows of responses as bytes: whatever a row can be comes back, and whatever is no row is refused in a line."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from monitor.attribution import MAX_REACTIONS, PENDING, UNKNOWN, Reaction, Row
from monitor.errors import StoreOwned
from monitor.events.schema import MAX_LATENCY_MS, MAX_POSITION
from monitor.events.timestamps import LATEST_MS
from monitor.identity import ITEM_BYTES, STUDENT_BYTES, TAG_BYTES
from monitor.store.rows import (
    MARKS,
    decode_row,
    encode_row,
    is_unwritten,
    mark_of,
    next_version,
    unwritten,
)
from monitor.varints import write_unsigned

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
def _rows(draw: st.DrawFn) -> Row:
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
    return Row(
        draw(_times),
        draw(st.one_of(st.just(PENDING), st.integers(0, (1 << 31) - 1))),
        student,
        b"".join(items),
        draw(st.one_of(st.none(), ranks)) if len(items) < 10 else None,
        draw(st.one_of(st.just(UNKNOWN), st.integers(0, MAX_LATENCY_MS))),
        draw(st.one_of(st.just(UNKNOWN), st.integers(0, 100_000))),
        tuple(sorted(draw(st.lists(reactions, max_size=9, unique=True)))),
        draw(st.integers(0, (1 << 31) - 1)),
    )


def _content(row: Row) -> tuple[Any, ...]:
    return (
        row.timestamp_ms, row.arm, row.student, row.items, row.ranks, row.latency_ms, row.category, row.reactions,
        row.version,
    )  # fmt: skip


def _reaction(number: int = 0, item: bytes = ITEMS[:ITEM_BYTES], kind: str = "rating", score: float = 4.0) -> Reaction:
    return AT_MS + 60_000 + number, f"f-{number}", STUDENT[:TAG_BYTES], item, kind, score


def _row(*reactions: Reaction) -> Row:
    return Row(AT_MS, 256, STUDENT, ITEMS, None, 412, 3, reactions, 1)


@given(_rows())
def test_every_row_comes_back(row: Row) -> None:
    """Times from 1970 to 9999, ids in any script, gaps in the positions, reactions of before the response."""
    assert _content(decode_row(encode_row(row))) == _content(row)


def test_as_many_reactions_as_a_row_keeps_come_back() -> None:
    """At the limit, and around where their number no longer fits the flags."""
    for many in (0, 1, 6, 7, 8, MAX_REACTIONS):
        row = _row(*map(_reaction, range(many)))
        assert _content(decode_row(encode_row(row))) == _content(row)


def test_the_bytes_are_those_that_are_documented() -> None:
    """The usual response, and the same with a rating: what stands where, and in how many bytes."""
    usual = encode_row(_row())
    head = bytes.fromhex("00000001 00000100 68 05") + AT_MS.to_bytes(6) + bytes.fromhex("9c03 03")
    assert usual == head + STUDENT + ITEMS
    assert len(usual) == 59
    rated = encode_row(_row(_reaction(item=ITEMS[-ITEM_BYTES:])))
    assert rated == head[:8] + b"\x69" + usual[9:] + bytes.fromhex("c0a907 25 03") + b"f-0" + bytes.fromhex("04 04")


def test_equal_scores_are_equal_bytes() -> None:
    """JSON may say -0.0, which is not less than 0."""
    assert encode_row(_row(_reaction(score=-0.0))) == encode_row(_row(_reaction(score=0.0)))


@pytest.mark.parametrize(
    "row",
    [
        _row(),
        _row(_reaction(), _reaction(1, b"", "a kind of its own", 0.25)),
        Row(AT_MS, PENDING, reactions=tuple(_reaction(number) for number in range(-9, 1))),
        Row(
            AT_MS,
            257,
            b"",
            ITEMS,
            (1, 2, 3, 5, 900),
            UNKNOWN,
            UNKNOWN,
            ((AT_MS - 1, "é", b"t" * 6, b"i" * 6, "é", 0.5),),
        ),
    ],
)
def test_damage_is_refused_or_makes_another_row(row: Row) -> None:
    """Cut anywhere, with a byte more, or with any bit turned round; what makes a row can be written again."""
    stored = encode_row(row)
    for length in range(len(stored)):
        with pytest.raises(StoreOwned, match="the row of a response is damaged"):
            decode_row(stored[:length])
    with pytest.raises(StoreOwned, match="1 bytes too many"):
        decode_row(stored + b"\0")
    for place in range(len(stored)):
        for bit in range(8):
            _read(stored[:place] + bytes([stored[place] ^ 1 << bit]) + stored[place + 1 :])


def _read(stored: bytes) -> None:
    try:
        row = decode_row(stored)
    except StoreOwned:
        return
    assert _content(decode_row(encode_row(row))) == _content(row)


def test_noise_is_refused_or_makes_a_row() -> None:
    """Nothing but `StoreOwned`, whatever the bytes; half of them begin as a row does."""
    chance = random.Random(7)
    begin = encode_row(_row(_reaction()))[:20]
    for _ in range(20_000):
        _read(begin[: chance.choice((0, 8, 16, 20))] + chance.randbytes(chance.randrange(80)))


@pytest.mark.parametrize(
    ("place", "byte", "why"),
    [
        (0, 0x80, "no row begins so"),
        (4, 0xFE, "no row begins so"),
        (8, 0xE9, "no row begins so"),
        (9, 0x20, "bytes are left, expected 192"),
        (9, 0xFF, "bytes are left, expected|items and"),
        (62, 0x15, "bytes too many|bytes are left"),
        (62, 0x2D, "a reaction to item 4 of 5"),
        (62, 0x27, "a reaction by nobody"),
        (62, 0xE5, "a reaction of kind 7"),
        (67, 0x05, "a reaction to item 5 of 5"),
        (64, 0xFF, "utf-8"),
    ],
)
def test_what_is_wrong_is_said(place: int, byte: int, why: str) -> None:
    """In a line that advises what to do."""
    stored = bytearray(encode_row(_row(_reaction(item=ITEMS[-ITEM_BYTES:]))))
    assert len(stored) == 69
    stored[place] = byte
    with pytest.raises(StoreOwned, match=rf"is damaged \(.*({why}).*ab-monitor rebuild"):
        decode_row(bytes(stored))


def test_times_and_numbers_that_no_row_has_are_damage() -> None:
    """A reaction before 1970, and more of them than are kept."""
    stored = encode_row(Row(0, PENDING, reactions=((0, "f-1", b"", b"", "rating", 1.0),)))
    with pytest.raises(StoreOwned, match="a reaction at no possible time"):
        decode_row(stored[:16] + b"\1" + stored[17:])
    many = encode_row(Row(0, PENDING, reactions=((0, "", b"", b"", "rating", 1.0),) * (MAX_REACTIONS + 1)))
    with pytest.raises(StoreOwned, match="0 items and 1001 reactions"):
        decode_row(many)


def test_a_number_of_items_whose_bytes_do_not_fit_64_bits_is_damage() -> None:
    """Six times it are 32, modulo 2⁶⁴, and so many bytes are there."""
    many = BytesWriter()
    write_unsigned(many, 16 * pow(3, -1, 1 << 63) % (1 << 63))
    head = encode_row(Row(AT_MS, 256))
    for flags in (b"\0", b"\x10"):
        with pytest.raises(StoreOwned, match="items and 0 reactions in 32 bytes"):
            decode_row(head[:8] + flags + b"\xff" + head[10:] + many.getvalue() + bytes(32))


def test_a_reaction_by_the_student_of_a_response_without_one_is_damage() -> None:
    """The response itself is the unit there: nobody's tag is its own."""
    stored = bytearray(
        encode_row(Row(AT_MS, 256, b"", ITEMS, reactions=((AT_MS, "f", b"", ITEMS[:6], "rating", 1.0),)))
    )
    stored[16 + len(ITEMS) + 1] |= 1
    with pytest.raises(StoreOwned, match="a reaction by nobody"):
        decode_row(bytes(stored))


@pytest.mark.parametrize("score", [-1.0, float("inf"), float("nan")])
def test_a_score_that_no_event_can_have_is_damage(score: float) -> None:
    """Neither negative nor without end."""
    stored = encode_row(_row(_reaction(score=0.5)))
    with pytest.raises(StoreOwned, match="a score of"):
        decode_row(stored[:-8] + struct.pack(">d", score))


def test_marks_and_counts_keep_apart() -> None:
    """Neither runs into the other, and no row that was written has the count of one that was not."""
    for mark in (1, 5, MARKS):
        new = unwritten(mark)
        assert is_unwritten(new)
        assert next_version(new) == new + 1
        largest = new + (1 << 24) - 1
        assert decode_row(encode_row(Row(AT_MS, 256, version=largest))).version == largest
        assert next_version(largest) == new + 1
        assert {mark_of(each) for each in (new, new + 1, largest)} == {mark}
        assert not is_unwritten(new + 1)
        assert not is_unwritten(largest)
