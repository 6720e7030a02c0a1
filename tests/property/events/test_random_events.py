"""Valid events are decoded to the fields of the message; all other messages raise `InvalidEvent`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.config import LimitSettings, Settings
from monitor.engine.decoder import EventDecoder
from monitor.errors import InvalidEvent
from monitor.events import REJECTION_REASONS, Response
from tests.support.streams import EXPERIMENT
from tests.unit.events.test_decoding import DECODER, FEEDBACK, NOW, RESPONSE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
EDGE_CASES: st.SearchStrategy[object] = st.sampled_from(
    [
        10**400,
        1e308,
        -0.0,
        "\ud800",
        "\x00",
        "",
        [],
        {},
        [[]],
        None,
        True,
        "2026-11-20T10:15:30+99:99",
        "9999-12-31T23:59:59-23:59",
    ]
)


def _check_decoding(payload: bytes | None) -> None:
    for decode in (DECODER.decode_response, DECODER.decode_feedback, DECODER.decode_event):
        try:
            event = decode(payload, NOW)
        except InvalidEvent as error:
            assert error.reason in REJECTION_REASONS
        else:
            for value in (event.response_id, event.user_id):
                assert value is None or value.encode()


@given(st.none() | st.binary())
def test_arbitrary_bytes_raise_only_invalid_event(payload: bytes | None) -> None:
    """Random bytes are no event."""
    _check_decoding(payload)


@given(JSON)
def test_arbitrary_json_raises_only_invalid_event(value: object) -> None:
    """The JSON includes NaN and lone surrogates."""
    _check_decoding(json.dumps(value).encode("utf-8", "surrogatepass"))


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    event: dict[str, Any] = dict(draw(st.sampled_from([RESPONSE, FEEDBACK])))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*event, "data", "specversion", "score"]))
        if draw(st.booleans()):
            event.pop(name, None)
        else:
            event[name] = draw(JSON | EDGE_CASES)
    if draw(st.booleans()):
        event = {"specversion": draw(st.sampled_from(["1.0", "2", 1])), "data": draw(st.just(event) | JSON)}
    payload = json.dumps(event, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return payload[: draw(st.integers(0, len(payload)))] if draw(st.integers(0, 3)) == 0 else payload


@given(_mutated())
def test_mutated_events_raise_only_invalid_event(payload: bytes) -> None:
    """Fields are dropped or replaced, events wrapped in envelopes, messages truncated."""
    _check_decoding(payload)


@given(st.integers(1, 900), st.sampled_from([b"[", b'{"a":']))
def test_deep_nesting_raises_only_invalid_event(depth: int, opening: bytes) -> None:
    """The nesting is at the top, or inside an ignored field."""
    _check_decoding(opening * depth)
    _check_decoding(b'{"response_id":"r","user_query":' + opening * depth)


_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda text: text.lower() not in LimitSettings().placeholder_ids
)
_OPTIONAL_TEXT = st.none() | _TEXT


@given(
    ids=st.tuples(_TEXT, _TEXT, _TEXT),
    texts=st.tuples(_OPTIONAL_TEXT, _OPTIONAL_TEXT, st.none() | st.text(st.characters(codec="utf-8"), max_size=20)),
    items=st.lists(st.tuples(_TEXT, st.integers(1, 1_000_000)), max_size=3, unique_by=(lambda i: i[0], lambda i: i[1])),
    at_ms=st.integers(LimitSettings().oldest_timestamp_ms, NOW + 300_000),
    latency_ms=st.none() | st.floats(0, 86_400_000),
    ignored=JSON.map(lambda value: json.loads(json.dumps(value, default=str), parse_constant=str)),
    data=st.data(),
)
def test_a_valid_response_is_decoded_to_the_fields_of_the_message(
    ids: tuple[str, str, str],
    texts: tuple[str | None, str | None, str | None],
    items: list[tuple[str, int]],
    at_ms: int,
    latency_ms: float | None,
    ignored: object,
    data: st.DataObject,
) -> None:
    """Keys have any order, separators and escapes vary, and a further field is ignored."""
    fields: dict[str, Any] = {
        **dict(zip(("response_id", "experiment", "variant"), ids, strict=True)),
        **dict(zip(("user_id", "query_id", "category"), texts, strict=True)),
        "items": [{"item_id": item, "position": position} for item, position in items],
        "timestamp": at_ms,
        "latency_ms": latency_ms,
        "ignored": ignored,
    }
    ordered = dict(data.draw(st.permutations(list(fields.items()))))
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": "), ("\n,\t", " :\r")]))
    text = json.dumps(ordered, ensure_ascii=data.draw(st.booleans()), separators=separators)
    positions = tuple(position for _, position in items)
    assert DECODER.decode_response(text.encode("utf-8", "surrogatepass"), NOW) == Response(
        ids[0],
        at_ms,
        ids[1],
        ids[2],
        tuple(item for item, _ in items),
        None if positions == tuple(range(1, len(items) + 1)) else positions,
        *texts,
        latency_ms,
    )


_DEFAULT_DECODER = EventDecoder(Settings((EXPERIMENT,)))


@given(st.lists(st.tuples(st.sampled_from("ABCDE"), st.integers(1, 30)), max_size=12, unique_by=lambda item: item[1]))
def test_each_item_of_a_list_in_any_order_has_its_smallest_position(items: list[tuple[str, int]]) -> None:
    """An independent computation: the list in the order of positions, without items that were listed before."""
    fields = {**RESPONSE, "items": [{"item_id": item, "position": position} for item, position in items]}
    response = _DEFAULT_DECODER.decode_response(json.dumps(fields).encode(), NOW)
    expected: dict[str, int] = {}
    for item, position in sorted(items, key=lambda pair: pair[1]):
        expected.setdefault(item, position)
    ranks = response.ranks or range(1, len(response.items) + 1)
    assert dict(zip(response.items, ranks, strict=True)) == expected
    assert len(response.items) == len(expected)
    assert response.has_repeated_items == (len(items) > len(expected))
