"""What records become, but for their content."""

from __future__ import annotations

import json

from monitor.clock import wall_clock
from monitor.events import Decoder
from monitor.identity import Identities
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.records import Records
from monitor.ingest.source import Slice
from tests.support.streams import EXPERIMENT, settings_with
from tests.unit.test_events import RESPONSE


def test_what_is_refused_keeps_its_key() -> None:
    """It is written with it to the dead letters, also when the rest of its batch has been let go of."""
    settings = settings_with(EXPERIMENT)
    intake = Intake([Experiment(1, settings.experiments[0])], Identities(b"key"))
    records = Records.of([4, 9, 11], [json.dumps(RESPONSE).encode(), b"{", None], [b"a", b"b", None])
    decoded = decode([Slice("t:0", "response", 4, records, 12)], Decoder(settings), intake, wall_clock())
    records.let_go()
    assert [(each.offset, each.key, each.payload) for each in decoded.refused] == [(9, b"b", b"{"), (11, None, None)]
