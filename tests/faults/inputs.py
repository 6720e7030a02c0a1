"""Faults of the input."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.faults.arena import Arena, Result
from tests.faults.catalogue import Ground, fault
from tests.support.command import HASHED, ab_monitor

_RESPONSE = {
    "response_id": "r-hostile",
    "timestamp": "2026-11-20T10:15:30.123Z",
    "experiment": "x",
    "variant": "control",
    "items": [{"item_id": "v", "position": 1}],
}


def _send(arena: Arena, payloads: list[bytes | None], kind: str = "responses") -> None:
    producer = arena.producer()
    for payload in payloads:
        producer.send(arena.topics[kind], payload, partition=0)
    producer.flush()
    producer.close()


@fault("Flood of rejected records", "5 000 records: exit code 4, then higher limits")
def flood(ground: Ground) -> Result:
    with ground.arena() as arena:
        _send(arena, [b"{}"] * 5_000)
        arena.write(per_second=4_000)
        for _ in range(2):
            with arena.worker() as worker:
                worker.ends_with(4)
                assert "max_consecutive_rejected = 1000" in worker.said()
        kept = len(arena.dead_letters())
        assert kept <= 2_000, f"{kept} of 5000 went to the dead letters although the limit is 1000"
        config = arena.config.read_text()
        arena.config.write_text(config + "\n[limits]\nmax_consecutive_rejected = 100_000\nmax_rejected_share = 1.0\n")
        began = time.monotonic()
        with arena.worker():
            arena.resumes(began)
            arena.finish()
        assert {letter.offset for letter in arena.dead_letters() if letter.value == b"{}"}
        assert len({dict(letter.headers)["offset"] for letter in arena.dead_letters()}) == 5_000
        return arena.compare()


def _hostile() -> list[bytes | None]:
    """Return payloads that have broken consumers elsewhere; all of them have to be refused."""
    items = [{"item_id": f"v{n}", "position": n + 1} for n in range(100_000)]
    text = json.dumps(_RESPONSE)
    return [
        None,
        b"",
        b"\x00" * 1000,
        b"\xff\xfe" + text.encode("utf-16-le"),
        text.encode("utf-16"),
        text.replace("r-hostile", "caf\u00e9").encode("latin-1"),
        json.dumps({**_RESPONSE, "user_query": "x" * 10_000_000}).encode(),
        json.dumps({**_RESPONSE, "items": items}).encode(),
        b"[" * 900_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        json.dumps({**_RESPONSE, "response_id": "r" * 100_000}).encode(),
        json.dumps({**_RESPONSE, "response_id": "\ud800"}).encode(),
        json.dumps({**_RESPONSE, "timestamp": 10**30}).encode(),
        json.dumps({**_RESPONSE, "timestamp": -1}).encode(),
        text.replace('"position": 1', '"position": 1e400').encode(),
        text.replace('"position": 1', '"position": NaN').encode(),
        text.replace('"r-hostile"', "17").encode(),
    ]


@fault("Hostile payloads", "10 MB, 900 000 brackets, wrong encodings, empty records")
def hostile(ground: Ground) -> Result:
    with ground.arena(topic_settings={"max.message.bytes": "20000000"}) as arena, arena.worker() as worker:
        arena.write(per_second=600)
        arena.progresses(1_000)
        before = _memory_mb(worker.process.pid)
        payloads = _hostile()
        for kind in ("responses", "feedback"):
            producer = arena.producer(max_request_size=20_000_000)
            for payload in payloads * 2:
                producer.send(arena.topics[kind], payload, key=b"k", partition=0)
            producer.flush()
            producer.close()
        sent = time.monotonic()
        arena.resumes(sent)
        arena.finish()
        grown = _memory_mb(worker.process.pid) - before
        letters = arena.dead_letters()
        # Null values are tombstones, and ignored.
        rejected = [payload for payload in payloads if payload is not None]
        assert len(letters) == 4 * len(rejected)
        assert sorted(len(each.value or b"") for each in letters) == sorted(len(each) for each in rejected * 4)
        assert {name for name, _ in letters[0].headers} == {
            "topic",
            "partition",
            "offset",
            "timestamp",
            "reason",
            "detail",
            "version",
        }
        arena.result.times = len(letters)
        arena.result.note = f"all in the dead-letter topic, worker +{grown:.0f} MB"
        assert grown < 400
        return arena.compare()


def _memory_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _forge(arena: Arena) -> None:
    """Write dead letters of a partition that there is not, and of nobody."""
    event = arena.events[0].payload
    producer = arena.producer()
    for partition in ("99", "9" * 5_000):
        headers = {"topic": arena.topics["responses"], "partition": partition, "offset": "1", "reason": "list_too_long"}
        producer.send(arena.topics["dead"], event, headers=[(name, text.encode()) for name, text in headers.items()])
    producer.flush()
    producer.close()


@fault("Dead letters retried", "limit raised, `dead-letters retry`")
def retried(ground: Ground) -> Result:
    with ground.arena() as arena:
        config = arena.config.read_text()
        arena.config.write_text(
            config + "\n[limits]\nmax_items = 1\nmax_consecutive_rejected = 100_000\nmax_rejected_share = 1.0\n"
        )
        few = [event for event in arena.events if event.kind == "response"][:500]
        rest = [event for event in arena.events if event not in set(few)]
        refused = sum(len(json.loads(event.payload)["items"]) > 1 for event in few)
        with arena.worker():
            arena.write(few, per_second=5_000)
            arena.finish()
        arena.config.write_text(config)
        listed = ab_monitor("dead-letters", "--config", arena.config, "list", "--json", environ=HASHED)
        assert listed.returncode == 0, listed.stderr
        assert sum(each["count"] for each in json.loads(listed.stdout)["reasons"]) == refused
        with arena.worker():
            arena.write(rest, per_second=5_000)
            arena.finish()
            _forge(arena)
            began = time.monotonic()
            done = ab_monitor("dead-letters", "--config", arena.config, "retry", environ=HASHED)
            assert done.returncode == 0, done.stderr
            assert f"{refused} dead letters sent to their topics again" in done.stdout
            assert "2 still rejected: foreign 1, partition does not exist 1" in done.stdout
            arena.finish()
            arena.result.resumed_s = time.monotonic() - began
        arena.result.times = refused
        return arena.compare()
