"""What records become, but for their content."""

from __future__ import annotations

import json

import pytest

from monitor.clock import wall_clock
from monitor.events import Decoder
from monitor.identity import Identities
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.source import Kind, Slice
from tests.support.streams import EXPERIMENT, settings_with
from tests.unit.test_events import FEEDBACK, RESPONSE


@pytest.mark.parametrize(
    ("partition", "mark"), [("topic:0", 1), ("topic:3", 4), ("topic:126", 127), ("topic:127", 1), ("a file", 1)]
)
def test_events_bring_the_mark_of_their_partition(partition: str, mark: int) -> None:
    """Partitions of one number in both topics have the same mark, and files without number any."""
    settings = settings_with(EXPERIMENT)
    kinds: list[tuple[Kind, object]] = [("response", RESPONSE), ("feedback", FEEDBACK)]
    slices = [Slice(partition, kind, 0, [0], [json.dumps(event).encode()], 1) for kind, event in kinds]
    for shards in (1, 3):
        intake = Intake([Experiment(1, settings.experiments[0])], Identities(b"key"), shards)
        decoded = decode(slices, Decoder(settings), intake, wall_clock())
        assert not decoded.refused
        parts = decoded.events.parts
        assert len(parts) == shards
        assert [answer.mark for part in parts for answer in part.answers] == [mark]
        assert [each for part in parts for each in part.marks] == [mark]
