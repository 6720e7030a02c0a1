"""Nothing that a student wrote, and no id, leaves by a door that is not the dead-letter topic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from monitor.web import HTTP_PATHS
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, eventually, get, service, status, write_config
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

DOCUMENT = (Path(__file__).parents[2] / "docs/events.md").read_text()
REASONS = re.findall(r"^- `(\w+)`: ", DOCUMENT.partition("## Rejections")[2], re.MULTILINE)
PLANTED = "why-do-I-fail-4711"
"""In every event, in every field that could hold something of a student."""
CONFIG = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "privacy.responses"
feedback_topic = "privacy.feedback"
dead_letter_topic = "privacy.dead"
group_id = "privacy"
[store]
url = "<store>"
[http]
port = 0
[limits]
max_payload_bytes = 4000
max_items = 3
max_id_length = 100
repeated_items = "reject"
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""


def _named(number: object) -> str:
    return f"{PLANTED}-{number}"


RESPONDED: dict[str, Any] = {
    **RESPONSE,
    "response_id": _named("response"),
    "user_query": PLANTED,
    "user_id": _named("student"),
    "session_id": _named("session"),
    "query_id": _named("query"),
    "category": _named("category"),
    "items": [{"item_id": _named(1), "position": 1, "title": PLANTED}, {"item_id": _named(2), "position": 2}],
    _named("field"): PLANTED,
}
REACTED: dict[str, Any] = {
    **FEEDBACK,
    # Stored as it is: docs/security.md.
    "feedback_id": "f-4711",
    "response_id": _named("response"),
    "user_id": _named("student"),
    "item_id": _named(1),
    "comment": PLANTED,
}


def _responded(**changes: object) -> bytes:
    return json.dumps({**RESPONDED, **changes}).encode()


def _reacted(**changes: object) -> bytes:
    return json.dumps({**REACTED, **changes}).encode()


def _items(*positions: int) -> list[dict[str, object]]:
    return [{"item_id": _named(number), "position": position} for number, position in enumerate(positions)]


REFUSED_RESPONSES: Mapping[str, list[bytes]] = {
    "empty_payload": [b""],
    "payload_too_large": [_responded(user_query=PLANTED * 300)],
    "invalid_json": [_responded() + PLANTED.encode(), PLANTED.encode(), b"\xff" + PLANTED.encode()],
    "not_an_object": [json.dumps(PLANTED).encode(), json.dumps([RESPONDED]).encode()],
    "invalid_envelope": [
        json.dumps({"specversion": "1.0", "id": PLANTED, "data": PLANTED}).encode(),
        json.dumps({"specversion": PLANTED, "data": RESPONDED}).encode(),
        json.dumps({"specversion": "1.0", "data_base64": PLANTED}).encode(),
    ],
    "missing_field": [
        json.dumps({name: value for name, value in RESPONDED.items() if name != "items"}).encode(),
        _responded(items=[{"item_id": PLANTED}]),
    ],
    "wrong_type": [
        _responded(items=PLANTED),
        _responded(items=[PLANTED]),
        _responded(items=[{"item_id": PLANTED, "position": PLANTED}]),
        _responded(user_id={PLANTED: PLANTED}),
        _responded(latency_ms=PLANTED),
    ],
    "invalid_id": [_responded(user_id=PLANTED * 9), _responded(user_id=PLANTED + "\ud800"), _responded(response_id="")],
    "invalid_timestamp": [_responded(timestamp=PLANTED), _responded(timestamp=-4711)],
    "implausible_timestamp": [_responded(timestamp=1_795_712_348), _responded(timestamp="1999-11-10T10:00:00Z")],
    "placeholder_id": [_responded(response_id="null")],
    "timestamp_without_offset": [_responded(timestamp="2026-11-10T10:00:00")],
    "timestamp_in_future": [_responded(timestamp="9000-11-10T10:00:00Z")],
    "list_too_long": [_responded(items=_items(1, 2, 3, 4))],
    "invalid_position": [_responded(items=_items(0))],
    "repeated_position": [_responded(items=_items(1, 1))],
    "repeated_item": [_responded(items=[_items(1)[0], {**_items(1)[0], "position": 2}])],
    "invalid_latency": [_responded(latency_ms=-1)],
}
REFUSED_FEEDBACK: Mapping[str, list[bytes]] = {
    "invalid_score": [_reacted(score=-1)],
    "score_out_of_scale": [_reacted(score=9)],
    "invalid_kind": [_reacted(kind=f"\a{PLANTED}"), _reacted(kind=PLANTED * 9), _reacted(kind=f"+{PLANTED}")],
}
# The names of experiments and variants are stored and shown, because the operator has to correct them.
SKIPPED = [_responded(experiment="Ranker", response_id="x"), _responded(variant="T", response_id="y")]


def _flat(events: Mapping[str, list[bytes]]) -> list[bytes]:
    return [event for event_list in events.values() for event in event_list]


def _rated(config: Path) -> bool:
    return bool(status(config)["experiments"]["ranker"]["variants"]["treatment"]["rated_responses"])


def test_every_rejection_reason_has_an_event() -> None:
    """A new reason needs an event in this file; those of other formats never quote a message (tests/unit/decoding)."""
    other_formats = {"invalid_framing", "unknown_schema", "invalid_avro", "invalid_protobuf"}
    assert sorted([*REFUSED_RESPONSES, *REFUSED_FEEDBACK, *other_formats]) == sorted(REASONS)


def test_logs_pages_store_and_headers_contain_no_student_data(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """Events are accepted, skipped, and rejected for every reason; only the body of a dead letter has the texts."""
    redis_server.client().flushall()
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"privacy.{topic}", 1)
    config = write_config(
        tmp_path / "config.toml", CONFIG, [("bootstrap", kafka.bootstrap), ("store", redis_server.url)]
    )
    responses = [*_flat(REFUSED_RESPONSES), *SKIPPED, _responded()]
    reactions = [*_flat(REFUSED_FEEDBACK), _reacted()]
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for topic, payloads in (("privacy.responses", responses), ("privacy.feedback", reactions)):
        for payload in payloads:
            producer.send(topic, payload, key=_named("student").encode())
    producer.flush()
    producer.close()
    log = tmp_path / "log"
    with service(config, log, "--verbose"):
        eventually("all is applied", lambda: _rated(config))
        url_match = re.search(r"serving url=(http\S+)/", log.read_text())
        assert url_match is not None
        pages = {
            path: get(url_match[1] + path.replace("NAME", "ranker"))[1]
            for path in (*HTTP_PATHS, f"/api/experiments/{PLANTED}")
        }
    # The caller of an unknown address reads the caller's own words.
    address = f"/api/experiments/{PLANTED}"
    pages[address] = pages[address].replace(f'unknown experiment \\"{PLANTED}\\"', "")
    for reason in REASONS:
        assert f'abmonitor_rejected_events_total{{reason="{reason}"' in pages["/metrics"]
    assert "privacy.dead" not in pages["/metrics"]

    letters = _letters(kafka, len(_flat(REFUSED_RESPONSES)) + len(_flat(REFUSED_FEEDBACK)))
    assert sorted(letter.value or b"" for letter in letters) == sorted(
        [*_flat(REFUSED_RESPONSES), *_flat(REFUSED_FEEDBACK)]
    )
    client = redis_server.client()
    stored = [key + client.dump(key) for key in client.scan_iter()]
    values = [value for key in client.scan_iter() for value in _content(client, key)]
    assert values
    texts = {
        "log": log.read_text(),
        "headers": repr([letter.headers for letter in letters]),
        "store": b"\n".join([*stored, *values]).decode("latin-1"),
        "status": ab_monitor("status", "--config", config, "--verbose").stdout,
        **pages,
    }
    for text_source, text in texts.items():
        assert text, text_source
        assert PLANTED not in text, text_source


def test_replay_and_evaluate_print_no_student_data(tmp_path: Path) -> None:
    """Rejected lines are reported by file and line."""
    store = f"embedded:{tmp_path / 'store'}"
    config = write_config(tmp_path / "config.toml", CONFIG, [("bootstrap", "127.0.0.1:1"), ("store", store)])
    lines = tmp_path / "events.jsonl"
    lines.write_bytes(
        b"\n".join([*_flat(REFUSED_RESPONSES), *_flat(REFUSED_FEEDBACK), *SKIPPED, _responded(), _reacted()])
    )
    for command in ("replay", "evaluate"):
        process = ab_monitor(command, "--config", config, "--verbose", lines)
        assert "invalid_envelope" in process.stderr
        # The table of `evaluate` names queries by their ids.
        output = process.stderr + process.stdout.replace(_named("query"), "")
        assert PLANTED not in output.replace("\n", ""), command


def _letters(kafka: KafkaBroker, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        "privacy.dead", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    letters = [next(consumer) for _ in range(count)]
    consumer.close()
    return letters


def _content(client: Any, key: bytes) -> list[bytes]:
    """Return the values of a key by read commands, because DUMP compresses long values."""
    kind = client.type(key)
    if kind == b"hash":
        return [part for pair in client.hgetall(key).items() for part in pair]
    if kind in {b"list", b"zset"}:
        values: list[bytes] = (client.lrange if kind == b"list" else client.zrange)(key, 0, -1)
        return values
    return [client.get(key)]
