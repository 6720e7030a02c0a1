"""What a good Python programmer would write in a day: the program that the worker is compared with.

json, the rows of a poll read in one MGET, everything that the poll changes written in one transaction, offsets with it.
It keeps ratings by (student, item), revises, drops what was sent again, joins early feedback, and sums the same three
metrics for all time and in the time buckets of the same two decays. It lacks what the worker has besides: sums over
students, refusals and dead letters, windows, forgetting, several workers, integers instead of floats. It runs in a
process of its own: how often a worker has Python look for cyclic garbage is the worker's affair.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context
from typing import Any, Final

import redis
from kafka import KafkaConsumer, TopicPartition

from monitor.clock import wall_clock
from monitor.config import KafkaSettings, Settings
from monitor.events import Decoder
from monitor.ingest.simulator import Scenario, generate
from tests.servers.redis import RedisServer
from tests.support.oracle import judge

_DISCOUNT: Final = [1 / math.log2(rank + 1) for rank in range(1, 6)]
_NAMES: Final = ("dcg@5", "ndcg@5", "success@5")
_RELEVANT: Final = 3
_BUCKETS_MS: Final = {"1h": 3_600_000 // 64, "24h": 86_400_000 // 64}


@dataclass(frozen=True, slots=True)
class Peer:
    """What a run cost and found."""

    cpu_s: float
    server_s: float
    totals: Mapping[str, Mapping[str, float]]
    """Variant → what → sum."""


def run(kafka: KafkaSettings, events: int, server: RedisServer) -> Peer:
    """Read the stream from its beginning into a server of its own, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_run, kafka, events, server.url).result()


def _run(kafka: KafkaSettings, events: int, url: str) -> Peer:
    client: Any = redis.Redis.from_url(url)
    topics = (kafka.responses_topic, kafka.feedback_topic)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        max_poll_records=kafka.max_poll_records,
        metrics_enabled=False,
    )
    partitions = [TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    used = client.info("cpu")
    cpu, seen = time.process_time(), 0
    while seen < events:
        polled = consumer.poll(timeout_ms=200)
        if polled:
            _apply(client, polled, topics[0])
            seen += sum(len(records) for records in polled.values())
    cpu_s = time.process_time() - cpu
    now = client.info("cpu")
    consumer.close(autocommit=False)
    totals = {
        key.decode().partition(":")[2]: {name.decode(): float(value) for name, value in client.hgetall(key).items()}
        for key in client.scan_iter(b"total:*")
    }
    server_s = sum(now[name] - used[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return Peer(cpu_s, server_s, totals)


def _apply(client: Any, polled: Mapping[TopicPartition, Sequence[Any]], responses: str) -> None:
    """Bring the records of a poll into the store: one read, one write."""
    records = [
        (partition.topic == responses, json.loads(record.value))
        for partition, several in polled.items()
        for record in several
    ]
    names = list({event["response_id"] for _, event in records})
    rows: dict[str, dict[str, Any]] = {
        name: json.loads(stored) if stored else {"ratings": {}}
        for name, stored in zip(names, client.mget([f"row:{name}" for name in names]), strict=True)
    }
    before = {name: _worth(row) for name, row in rows.items()}
    for shown, event in records:
        _put(rows[event["response_id"]], event, shown=shown)
    changes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, row in rows.items():
        _add(changes, row, before[name])
    with client.pipeline(transaction=True) as pipeline:
        pipeline.mset({f"row:{name}": json.dumps(row) for name, row in rows.items()})
        for place, sums in changes.items():
            for what, value in sums.items():
                if value:
                    pipeline.hincrbyfloat(place, what, value)
        offsets = {f"{each.topic}:{each.partition}": several[-1].offset + 1 for each, several in polled.items()}
        pipeline.hset("offsets", mapping=offsets)
        pipeline.execute()


def _put(row: dict[str, Any], event: Mapping[str, Any], *, shown: bool) -> None:
    """Put an event into its row."""
    if shown:
        if "variant" not in row:
            row["variant"], row["at_ms"] = event["variant"], _ms(event["timestamp"])
            row["items"] = {item["item_id"]: item["position"] for item in event["items"]}
    elif event["kind"] == "rating":
        register = f"{event['user_id']} {event['item_id']}"
        rating = [_ms(event["timestamp"]), event["feedback_id"], event["score"]]
        if rating > row["ratings"].get(register, []):
            row["ratings"][register] = rating


def _add(changes: Mapping[str, dict[str, float]], row: Mapping[str, Any], before: Mapping[str, float]) -> None:
    """Add what a row is worth now, less what it was worth before, for all time and in its time buckets."""
    after = _worth(row)
    if after == before:
        return
    variant = row["variant"]
    places = [f"total:{variant}"]
    places += [f"bucket:{decay}:{variant}:{row['at_ms'] // span}" for decay, span in _BUCKETS_MS.items()]
    for place in places:
        into = changes[place]
        for what in after.keys() | before.keys():
            into[what] += after.get(what, 0.0) - before.get(what, 0.0)


def _ms(stamp: str | int) -> int:
    return stamp if isinstance(stamp, int) else round(datetime.fromisoformat(stamp).timestamp() * 1000)


def _worth(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what a row adds to the sums."""
    if "variant" not in row:
        return {}
    best: dict[int, float] = {}
    for register, (at_ms, _, score) in row["ratings"].items():
        rank = row["items"].get(register.split(" ")[1])
        if rank is not None and 0 <= at_ms - row["at_ms"] <= 86_400_000:
            best[rank] = max(score, best.get(rank, 0))
    if not best:
        return {"responses": 1.0}
    dcg = sum(grade * _DISCOUNT[rank - 1] for rank, grade in best.items())
    ideal = sum(grade * weight for grade, weight in zip(sorted(best.values(), reverse=True), _DISCOUNT, strict=False))
    success = float(any(grade >= _RELEVANT for grade in best.values()))
    found = {"responses": 1.0, "rated": 1.0, "dcg@5": dcg, "success@5": success}
    return {**found, "ndcg@5": dcg / ideal, "ndcg@5 defined": 1.0} if ideal else found


def check(peer: Peer, settings: Settings, scenario: Scenario) -> None:
    """Compare the sums with a recomputation of the stream; a fast wrong peer would be no peer."""
    decoder = Decoder(settings)
    now_ms = wall_clock() + 10**12
    judged = judge(settings.experiments[0], (decoder.event(each.payload, now_ms) for each in generate(scenario)))
    for variant, found in peer.totals.items():
        own = [each for each in judged if each.response.variant == variant]
        for name in _NAMES:
            values = [each.metrics[name] for each in own if each.rated]
            total = math.fsum(value for value in values if value is not None)
            if found["responses"] != len(own) or abs(found[name] - total) > 1e-8 * len(own):
                raise SystemExit(f"wrong: the peer's {variant} {name}: {found[name]}, {total} recomputed")
