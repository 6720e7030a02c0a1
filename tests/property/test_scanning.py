"""What is scanned is what msgspec and the checks behind it make of the same bytes; and usual events are scanned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.config import LimitSettings, Settings
from monitor.errors import Refusal
from monitor.events import Decoder, Feedback, Response, scanning
from monitor.events.scanning import scan_feedback, scan_response
from tests.support.streams import EXPERIMENT, fields_of
from tests.unit.test_events import FEEDBACK, NOW, RESPONSE

pytestmark = pytest.mark.skipif(scanning.__file__.endswith(".py"), reason="nothing is compiled here: no C compiler")

LIMITS = LimitSettings(max_payload_bytes=4000, max_items=6, max_id_length=20)
DECODER = Decoder(Settings((EXPERIMENT,), limits=LIMITS))

TEXTS = [
    *(
        '""',
        '"a"',
        '"+1"',
        '"rating"',
        '" "',
        '"\x7f"',
        '"\x01"',
        '"a\tb"',
        '"ü"',
        '"😀"',
        '"\\u00fc"',
        '"\\""',
        '"a\\n"',
    ),
    *(
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\u12"',
        '"\\x"',
        '"\\',
        '"',
        '"\0"',
        '"\ud800"',
        "null",
        "nul",
        "true",
        "0",
        "[]",
    ),
    *(f'"{each * count}"' for each in ("a", "ü") for count in (7, 8, 9, 19, 20, 21, 64, 65)),
]
TIMES = [
    *(
        '"2026-11-20T10:15:30.123Z"',
        '"2026-11-20T10:15:30Z"',
        '"2024-02-29T23:59:59.999999Z"',
        '"2100-02-29T00:00:00Z"',
    ),
    *('"2023-02-29T00:00:00Z"', '"2026-11-20T10:15:30+00:00"', '"2026-11-20T24:00:00Z"', '"1969-12-31T23:59:59Z"'),
    *('"2026-11-20T10:15:30.12Z"', '"2026-13-20T10:15:30Z"', '"2026-00-20T10:15:30Z"', '"2026-04-31T10:15:30Z"'),
    *('"2026-11-00T10:15:30Z"', '"2026-11-20T10:60:30Z"', '"2026-11-20T10:15:60Z"', '"2026-11-20t10:15:30Z"'),
    *(
        '"2026-11-20T10:15:30z"',
        '"2026-11-20T10:15:30,123Z"',
        '"2026-11-20T10:15:30.12aZ"',
        '"2026-11-20T10:15:30.1234xZ"',
    ),
    *(
        '"2026-11-2ZT10:15:30Z"',
        '"1970-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59.999Z"',
        f'"2026-11-20T10:15:30.{"1" * 19}Z"',
    ),
    *(f'"2026-11-20T10:15:30.{"1" * 20}Z"', "0", str(NOW + 300_000), str(NOW + 300_001), "253402300799999"),
    *("253402300800000", "-1", "1.0", "1e3", "null", '"1"', '""'),
]
NUMBERS = [
    *(
        "0",
        "00",
        "01",
        "-0",
        "-1",
        "1",
        "1.",
        ".5",
        "0.5",
        "1.50",
        "1e3",
        "1E3",
        "1e",
        "12",
        "3.00",
        "true",
        "null",
        '"1"',
    ),
    *(
        "123456789012345",
        "1234567890123456",
        "9007199254740993",
        "900719925474099.3",
        "12345678901234567",
        "0.00000000000001",
        "0.000000000000001",
        "86400000",
        "86400001",
    ),
    *(
        "86400000.5",
        "86399999.999",
        "0.1",
        "2.675",
        "99999999999999.9",
        "NaN",
        "Infinity",
        "+1",
        "4",
        "5",
        "5.5",
        "1 2",
    ),
]
_ONE, _TWO = '{"item_id":"a","position":1}', '{"item_id":"b","position":2}'
ITEMS = [
    *(
        "[]",
        "[ ]",
        "[,]",
        f"[{_ONE}]",
        f"[{_ONE},]",
        f"[{_ONE},{_TWO}]",
        f"[{_TWO},{_ONE}]",
        f"[{_TWO}]",
        f"[{_ONE} {_TWO}]",
    ),
    *(f"[{_ONE},{_ONE}]", f"[{_ONE}", "[{}]", "[[]]", "{}", "null", '[{"item_id":"a"}]', '[{"position":1}]', '["a"]'),
    *(
        f'[{_ONE},{{"position":2,"item_id":"{item}"}}]'
        for item in ("a", "aa", "b", "ü", "a" * 20, "a" * 21, "ü" * 20, "")
    ),
    *(
        f'[{{"item_id":"a","position":{place}}}]'
        for place in ("1.0", "1e0", "01", "0", "-1", '"1"', "true", "1000001", "2")
    ),
    *(f'[{{"item_id":{item},"position":1}}]' for item in ("null", "1", '"\\u0061"', '"\xff"', '"\\ud800"', "[]")),
    *(
        f'[{{"item_id":"a","position":1,{more}}}]'
        for more in ('"position":1', '"item_id":"b"', '"t":"x"', '"t":"\xff"', '"t":{}', '"t":-1', "")
    ),
    "[" + ",".join([f'{{"item_id":"{place}","position":{place}}}' for place in range(1, 7)]) + "]",
    "[" + ",".join([f'{{"item_id":"{place}","position":{place}}}' for place in range(1, 8)]) + "]",
]
ANY = [
    *TEXTS,
    *NUMBERS,
    "{}",
    '{"a":1}',
    '["a"]',
    "-",
    "-a",
    "falsey",
    "false",
    '"\\u00e9\\b"',
    '"\\uDC00"',
    '"\\u00g0"',
    '"\xff"',
]
SEPARATORS = [(",", ":"), (", ", ": "), ("\n,\t", " :\r")]


def _fragments(name: str) -> list[str]:
    return {"timestamp": TIMES, "items": ITEMS, "latency_ms": NUMBERS, "score": NUMBERS, "more": ANY}.get(name, TEXTS)


def _plain(event: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in event.items()}


def _joined(pairs: Iterable[tuple[str, str]], between: str, behind: str) -> bytes:
    text = "{" + between.join([f'"{name}"{behind}{value}' for name, value in pairs]) + "}"
    return text.encode("utf-8", "surrogatepass").replace(b"\xc3\xbf", b"\xff")


def _compare(payload: bytes) -> None:
    for quick, slow in (
        (DECODER.response, DECODER._any_response),
        (DECODER.feedback, DECODER._any_feedback),
        (DECODER.event, DECODER._any_event),
    ):
        assert _of(quick, payload) == _of(slow, payload), payload


def _of(decode: Callable[[bytes, int], Response | Feedback], payload: bytes) -> object:
    try:
        return repr(fields_of(decode(payload, NOW)))
    except Refusal as refusal:
        return refusal.reason, refusal.detail


@pytest.mark.parametrize("event", [RESPONSE, FEEDBACK, {**FEEDBACK, **RESPONSE}], ids=["response", "feedback", "both"])
def test_one_field_is_read_or_refused_as_by_the_slow_way(event: dict[str, Any]) -> None:
    """Any of them, with any value, behind any space; missing, or there twice."""
    plain = _plain(event)
    for name in [*plain, "more"]:
        for value, (between, behind) in product(_fragments(name), SEPARATORS):
            _compare(_joined({**plain, name: value}.items(), between, behind))
        for pairs in (
            [(each, value) for each, value in plain.items() if each != name],
            [*plain.items(), (name, _fragments(name)[1])],
            [*plain.items(), (f"{name}s", "1")],
            [*plain.items(), (name[:-1], "1")],
        ):
            _compare(_joined(pairs, ",", ":"))


@st.composite
def _payloads(draw: st.DrawFn) -> bytes:
    kinds: list[dict[str, Any]] = [RESPONSE, FEEDBACK, {**FEEDBACK, **RESPONSE}]
    plain = _plain(draw(st.sampled_from(kinds)))
    for name in draw(st.lists(st.sampled_from([*plain, "more"]), max_size=3)):
        plain[name] = draw(st.sampled_from(_fragments(name)))
    pairs = draw(st.permutations(list(plain.items())))
    payload = _joined(pairs, *draw(st.sampled_from(SEPARATORS)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(payload)))
        new = draw(st.binary(max_size=2) | st.sampled_from([b'"', b"\\", b"0", b"-", b".", b"e1", b",", b"}", b"\xff"]))
        payload = payload[:at] + new + payload[at + draw(st.integers(0, 2)) :]
    return payload


@given(_payloads())
@example(b"{}")
def test_every_event_is_read_or_refused_as_by_the_slow_way(payload: bytes) -> None:
    """Several fields at once, in any order, and bytes that somebody has changed."""
    _compare(payload)


@given(
    _payloads(),
    st.binary(max_size=3) | st.sampled_from([b'{"', b"["]),
    st.binary(max_size=3) | st.sampled_from([b"", b"}", b"]}", b'"}', b" }", b"0}", b"ull}", b",", b"e1}"]),
    st.integers(0, 3),
)
@example(b'{"n":1', b"", b"}", 0)
def test_an_event_among_other_bytes_is_read_as_by_itself(
    payload: bytes, before: bytes, behind: bytes, cut: int
) -> None:
    """Whatever stands beside it, even if that would complete one that ends too early."""
    payload = payload[: len(payload) - cut]
    stored, begin, end = before + payload + behind, len(before), len(before) + len(payload)
    for apart, among in (
        (DECODER.response, DECODER.response_in),
        (DECODER.feedback, DECODER.feedback_in),
        (DECODER.event, DECODER.event_in),
    ):
        assert _of(lambda _, now_ms, read=among: read(stored, begin, end, now_ms), payload) == _of(apart, payload)  # type: ignore[misc]


@pytest.mark.parametrize("end", [b"", b" \n", b"\0", b"}", b"{}", b"x"])
def test_what_follows_an_event_is_looked_at(end: bytes) -> None:
    """Nothing may."""
    _compare(json.dumps(RESPONSE).encode() + end)


@pytest.mark.parametrize("count", [63, 64, 65, 70])
def test_long_lists_are_read(count: int) -> None:
    """Those that are too long for the quick way, too."""
    decoder = Decoder(Settings((EXPERIMENT,)))
    items = [{"item_id": f"v{place}", "position": place} for place in range(1, count + 1)]
    payload = json.dumps({**RESPONSE, "items": items}).encode()
    assert fields_of(decoder.response(payload, NOW)) == fields_of(decoder._any_response(payload, NOW))
    assert (scan_response(payload, 0, len(payload), 20, 100) is None) == (count > 64)


@given(st.integers(0, 10**15 - 1), st.integers(0, 14))
def test_every_number_of_up_to_15_digits_is_the_nearest(digits: int, decimals: int) -> None:
    """As Python reads it."""
    text = f"{digits:0{decimals + 1}}"
    number = text[: len(text) - decimals] + ("." + text[len(text) - decimals :] if decimals else "")
    payload = json.dumps({**FEEDBACK, "score": 0}).replace('"score": 0', f'"score": {number}').encode()
    found = scan_feedback(payload, 0, len(payload), 20)
    assert found is not None
    assert found[6] == float(number)


_ALIKE = st.text("ab", min_size=1, max_size=3)
"""Between the same eight first and last bytes: by those, and by its length, a text that was seen is found again."""


@given(st.lists(_ALIKE | _ALIKE.map(lambda middle: f"12345678{middle}87654321"), max_size=50))
def test_texts_that_come_again_are_told_apart(texts: list[str]) -> None:
    """However alike they are."""
    for text in [*texts, *reversed(texts)]:
        items = [{"item_id": text, "position": 1}]
        payload = json.dumps({**RESPONSE, "variant": text, "category": text, "items": items}).encode()
        found = scan_response(payload, 0, len(payload), 70, 3)
        assert found is not None
        assert (found[3], found[4], found[7]) == (text, (text,), text)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_usual_events_are_scanned(separators: tuple[str, str], ascii_only: bool) -> None:  # noqa: FBT001
    """The documented ones, with fields that nobody asks for, null and what is missing: not left to the slow way."""
    for event in (
        RESPONSE,
        {**RESPONSE, "user_id": None, "latency_ms": None},
        {**RESPONSE, "timestamp": NOW, "latency_ms": 12.5, "user_query": 'what is "½"\n?', "premium": True, "n": -1.5},
        {name: RESPONSE[name] for name in ("response_id", "timestamp", "experiment", "variant", "items")},
        dict(reversed(RESPONSE.items())),
    ):
        payload = json.dumps(event, separators=separators, ensure_ascii=ascii_only).encode()
        for behind in (b"", b"\n", b" }", b"\0"):
            assert scan_response(b"{" + payload + behind, 1, 1 + len(payload), 20, 3) is not None, event
    for event in (FEEDBACK, {**FEEDBACK, "item_id": None}, dict(reversed(FEEDBACK.items()))):
        payload = json.dumps(event, separators=separators, ensure_ascii=ascii_only).encode()
        assert scan_feedback(payload, 0, len(payload), 20) is not None, event


def test_payloads_and_limits_are_checked() -> None:
    """What is no payload is no crash."""
    for wrong in [
        ("{}", 0, 2, 20, 3),
        (b"{}", 0, 2, 20),
        (b"{}", 20, 3),
        (b"{}", 0, 2, "20", 3),
        (b"{}", 0, 2, 20, 10**30),
        (b"{}", "0", 2, 20, 3),
        (b"{}", 0, 3, 20, 3),
        (b"{}", -1, 2, 20, 3),
        (b"{}", 2, 1, 20, 3),
    ]:
        with pytest.raises((TypeError, OverflowError, ValueError)):
            scan_response(*wrong)  # type: ignore[arg-type]
