"""What records become, but for their content."""

from __future__ import annotations

import json

from monitor.clock import wall_clock
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.decoder import Decoder
from monitor.engine.id_hash import IdHasher
from monitor.pipeline.batch_decoding import decode
from monitor.sources.source import PlainRecord, Slice
from tests.support.streams import EXPERIMENT, settings_with
from tests.unit.events.test_decoding import RESPONSE


def test_what_is_refused_keeps_its_key() -> None:
    """It is written with it to the dead letters."""
    settings = settings_with(EXPERIMENT)
    normalizer = EventNormalizer([Experiment(1, settings.experiments[0])], IdHasher(b"key"))
    records = [
        PlainRecord(4, b"a", json.dumps(RESPONSE).encode()), PlainRecord(9, b"b", b"{"), PlainRecord(11, None, None)
    ]  # fmt: skip
    decoded = decode([Slice("t:0", "response", 4, records, 12)], Decoder(settings), normalizer, wall_clock())
    assert [(each.offset, each.key, each.payload) for each in decoded.refused] == [(9, b"b", b"{"), (11, None, None)]
