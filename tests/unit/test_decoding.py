"""What records become, but for their content."""

from __future__ import annotations

import json
from itertools import product

import pytest

from monitor.clock import wall_clock
from monitor.engine.id_hash import IdHasher
from monitor.events import Decoder
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.records import Records
from monitor.ingest.source import Kind, Slice
from monitor.store.keys import shard_of_response
from tests.support.streams import EXPERIMENT, settings_with
from tests.unit.test_events import FEEDBACK, RESPONSE


@pytest.mark.parametrize(
    ("partition", "mark"), [("topic:0", 1), ("topic:3", 4), ("topic:126", 127), ("topic:127", 1), ("a file", 1)]
)
def test_events_bring_the_mark_of_their_partition(partition: str, mark: int) -> None:
    """Partitions of one number in both topics have the same mark, and files without number any."""
    settings = settings_with(EXPERIMENT)
    kinds: list[tuple[Kind, object]] = [("response", RESPONSE), ("feedback", FEEDBACK)]
    slices = [Slice(partition, kind, 0, Records.of([0], [json.dumps(event).encode()]), 1) for kind, event in kinds]
    intake = Intake([Experiment(1, settings.experiments[0])], IdHasher(b"key"))
    decoded = decode(slices, Decoder(settings), intake, wall_clock())
    assert not decoded.refused
    assert [answer.mark for answer in decoded.events.answers] == [mark]
    assert decoded.events.marks == [mark]


@pytest.mark.parametrize("waiting", list(product([False, True], repeat=3)))
def test_events_are_told_apart_by_the_shards_of_their_responses(waiting: list[bool]) -> None:
    """Short ids and hashes of long ones; what belongs to a reaction goes with it."""
    settings = settings_with(EXPERIMENT)
    intake = Intake([Experiment(1, settings.experiments[0])], IdHasher(b"key"))
    ids = [f"r-{number}" if number % 2 else f"a-response-with-a-long-id-{number}" for number in range(40)]
    at_ms = wall_clock() - 1000
    kinds: list[tuple[Kind, dict[str, object]]] = [("response", RESPONSE), ("feedback", FEEDBACK)]
    slices = []
    for kind, event in kinds:
        alike = [{**event, "response_id": each, "timestamp": at_ms + at} for at, each in enumerate(ids)]
        records = Records.of(range(40), [json.dumps(each).encode() for each in alike])
        slices.append(Slice("t:0", kind, 0, records, 40))
    events = decode(slices, Decoder(settings), intake, wall_clock()).events
    events.marks = list(range(40))
    homes = [shard_of_response(name, 3) for name in events.answered]
    assert {*homes} == {0, 1, 2}
    found = events.about(waiting)
    wanted = [place for place, home in enumerate(homes) if waiting[home]]
    assert found.answers == [events.answers[place] for place in wanted]
    assert found.answered == [events.answered[place] for place in wanted]
    assert found.reactions == [events.reactions[place] for place in wanted]
    assert found.marks == wanted


def test_what_is_refused_keeps_its_key() -> None:
    """It is written with it to the dead letters, also when the rest of its batch has been let go of."""
    settings = settings_with(EXPERIMENT)
    intake = Intake([Experiment(1, settings.experiments[0])], IdHasher(b"key"))
    records = Records.of([4, 9, 11], [json.dumps(RESPONSE).encode(), b"{", None], [b"a", b"b", None])
    decoded = decode([Slice("t:0", "response", 4, records, 12)], Decoder(settings), intake, wall_clock())
    records.let_go()
    assert [(each.offset, each.key, each.payload) for each in decoded.refused] == [(9, b"b", b"{"), (11, None, None)]
