"""What an event costs, and a row takes, as the store grows.

The stream is the same at every size: new responses by 20 000 students, and ratings of the newest 100 000 responses,
chosen evenly, so that nearly every rating has its row read. It is decoded and applied without Kafka, which knows
nothing of the store's size.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from monitor.clock import wall_clock
from monitor.config import Settings, StoreSettings
from monitor.engine.id_hash import IdHasher
from monitor.events import Decoder
from monitor.ingest.decoding import Decoded, decode
from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.records import Records
from monitor.ingest.simulator import Scenario
from monitor.ingest.source import Slice
from monitor.ingest.writer import Writer
from monitor.service import opened, writer_for
from monitor.store import Advance, Position, RedisStore, sum_up
from tests.bench.figures import Figure, recorded
from tests.bench.loader import END_MS, Loader, response_name, videos
from tests.bench.plot import Line, draw
from tests.bench.settings import settings_of
from tests.servers.redis import RedisServer, redis_binary

_PLOT: Final = Path(__file__).parents[2] / "docs/cost.svg"
_SIZES: Final = (100_000, 1_000_000)
_LARGEST: Final = 10_000_000
_PER_STUDENT: Final = 5
_ACTIVE: Final = 20_000
RECENT: Final = 100_000
_POLL: Final = 1000
_POLLS: Final = 20
_ROUNDS: Final = 5
_PARTITION: Final = "bench:0"
_SLOT: Final = 10.7
"""Bytes of a key's place in the server's table: 8, and half to all of them are taken."""
_NOTED: Final = 17
"""Bytes of a response's entry in the list of its hour."""


def measure(*, large: bool = False) -> Iterator[Figure]:
    """Yield the cost at each size, how it grows, and bytes per row."""
    costs: dict[int, float] = {}
    sizes = (*_SIZES, _LARGEST) if large else _SIZES
    for size in sizes:
        # The server's own rewriting of its file would be measured otherwise.
        with RedisServer(redis_binary(), auto_aof_rewrite_percentage="0") as server:
            settings = replace(settings_of(Scenario()), store=StoreSettings(url=server.url))
            for figure in _at(size, settings, server):
                if figure.name == _name("worker and redis-server", size):
                    costs[size] = figure.value
                yield figure
    for size in sizes[1:]:
        yield Figure(
            f"event at {_count(size)} rows against {_count(sizes[0])}", costs[size] / costs[sizes[0]], "×", most=1.15
        )


def _count(size: int) -> str:
    """Return a number with its thousands apart."""
    return f"{size:,}".replace(",", " ")


def _name(what: str, size: int) -> str:
    return f"event at {_count(size)} rows: {what}"


def _at(size: int, settings: Settings, server: RedisServer) -> Iterator[Figure]:
    client = server.client()
    with opened(settings, wall_clock) as opening:
        experiment = Experiment(opening.held.numbers[settings.experiments[0].name], settings.experiments[0])
        students = size // _PER_STUDENT
        loader = Loader(client, opening.store.first.keys, experiment, opening.held.hash_key, size, students)
        empty = _used(client)
        loader.load_responses()
        rows = _used(client)
        loader.load_students()
        full = _used(client)
        identities = IdHasher(opening.held.hash_key)
        intake, writer = Intake([experiment], identities), writer_for(opening.store, [experiment], identities)
        writer.state([_PARTITION])
        own_us, server_us = _cost(settings, intake, writer, _stream(settings, size), experiment, opening.store.first)
    yield Figure(_name("worker, without Kafka", size), own_us, "µs")
    yield Figure(_name("redis-server", size), server_us, "µs")
    yield Figure(_name("worker and redis-server", size), own_us + server_us, "µs")
    yield Figure(f"store per response at {_count(size)}", (rows - empty) / size + _SLOT, "bytes", most=200)
    yield Figure(f"store per response at {_count(size)}, by formula", _mean(loader.rows()) + _NOTED, "bytes")
    yield Figure(f"store per student at {_count(size)}", (full - rows) / students + _SLOT, "bytes", most=150)
    some = loader.students(0, min(2000, students))
    yield Figure(f"store per student at {_count(size)}, by formula", _mean(some), "bytes")


def _stream(settings: Settings, size: int, polls: int = _ROUNDS * _POLLS) -> Iterator[Slice]:
    """Yield polls of two responses to one rating."""
    chance = random.Random(1)
    begin = 0
    for number in range(polls):
        payloads: list[bytes | None] = []
        for place in range(_POLL):
            event = number * _POLL + place
            if place % 3:
                student = chance.randrange(_ACTIVE)
                experiment = settings.experiments[event % len(settings.experiments)]
                variants = sorted(experiment.variants)
                shown = videos(event)
                found: dict[str, Any] = {
                    "response_id": f"measured-{event:010d}",
                    "timestamp": END_MS + event,
                    "experiment": experiment.name,
                    "variant": variants[student % len(variants)],
                    "user_id": f"student-{student}",
                    "items": [{"item_id": video, "position": rank} for rank, video in enumerate(shown, 1)],
                }
            else:
                about = size - 1 - chance.randrange(min(RECENT, size))
                found = {
                    "feedback_id": f"f-{event}",
                    "response_id": response_name(about),
                    "timestamp": END_MS + event,
                    "item_id": videos(about)[chance.randrange(5)],
                    "kind": "rating",
                    "score": chance.randrange(5),
                }
            payloads.append(json.dumps(found).encode())
        yield Slice(_PARTITION, "event", begin, Records.of(range(begin, begin + _POLL), payloads), begin + _POLL)
        begin += _POLL


def decoded(settings: Settings, intake: Intake, size: int, polls: int) -> Iterator[Decoded]:
    """Yield the decoded polls of the stream."""
    decoder = Decoder(settings)
    for each in _stream(settings, size, polls):
        yield decode([each], decoder, intake, wall_clock())


def _cost(
    settings: Settings,
    intake: Intake,
    writer: Writer,
    stream: Iterable[Slice],
    experiment: Experiment,
    store: RedisStore,
) -> tuple[float, float]:
    """Return the µs per event of this process and of the server, in the cheapest of some rounds."""
    decoder, client = Decoder(settings), store.client
    late = {str(experiment.number): 0, PENDING_CLASS: 0}
    polls = list(stream)
    gc.collect()
    gc.freeze()
    found = []
    for first in range(0, len(polls), _POLLS):
        used, began = client.info("cpu"), time.thread_time()
        for each in polls[first : first + _POLLS]:
            decoded = decode([each], decoder, intake, wall_clock())
            step = Advance(_PARTITION, each.begin or None, Position(each.next_offset))
            status, _ = writer.begin(decoded.events, late, [step])()
            if status != "applied" or decoded.refused:
                raise SystemExit(f"a batch was not applied: {status}, {decoded.refused[:1]}")
        sum_up(store)
        own, now = time.thread_time() - began, client.info("cpu")
        server_s = sum(now[name] - used[name] for name in ("used_cpu_user", "used_cpu_sys"))
        found.append((own * 1e6 / _POLLS / _POLL, server_s * 1e6 / _POLLS / _POLL))
    gc.unfreeze()
    return min(found, key=sum)


def _used(client: Any) -> float:
    """Return the server's bytes without the places of its table, which doubles at once, and is there twice meanwhile.

    What Redis 7.0 calls the overhead of a table is those and 40 bytes for each key.
    """
    table = client.memory_stats()["db.0"]["overhead.hashtable.main"] - 40 * client.dbsize()
    return float(client.info("memory")["used_memory"] - table)


def _mean(rows: Iterable[tuple[bytes, bytes]]) -> float:
    sizes = [_bytes(key, value) for key, value in rows]
    return sum(sizes) / len(sizes)


def _bytes(key: bytes, value: bytes) -> float:
    """Return what Redis 7.0 takes for a string: entry, its place in the table, key and value as jemalloc rounds them.

    An entry is 24 bytes, its place `_SLOT`; names have a head and an end of 2
    bytes (4 from 32 bytes on), values an object of 16 and 4 (up to 44 bytes in one piece).
    """
    entry, place = 24, _SLOT
    name = len(key) + (2 if len(key) < 32 else 4)
    if len(value) <= 44:
        return _rounded(entry) + place + _rounded(name) + _rounded(16 + len(value) + 4)
    return _rounded(entry) + place + _rounded(name) + 16 + _rounded(len(value) + (4 if len(value) < 256 else 6))


def _rounded(size: int) -> int:
    """Return jemalloc's size class: multiples of 16 up to 128 (and 8), then four to each doubling."""
    if size <= 8:
        return 8
    step = 16
    while size > step * 8:
        step *= 2
    return -(-size // step) * step


def plot() -> None:
    """Draw the recorded costs against the size of the store."""
    known = recorded()
    sizes = [size for size in (*_SIZES, _LARGEST) if _name("redis-server", size) in known]
    if not sizes:
        return
    draw(
        _PLOT,
        "CPU per event, µs (without Kafka), against rows in the store",
        [
            Line(what, [(size, known[_name(what, size)]) for size in sizes])
            for what in ("worker and redis-server", "worker, without Kafka", "redis-server")
        ],
    )
