"""Excluded responses in the evaluation of files: as in the service, they count nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monitor.config import parse_settings
from monitor.decoding import RecordDecoder
from monitor.offline import read_judged_responses, read_ratings
from monitor.sources import EventFile, FileSource
from tests.support.streams import START

_EXPERIMENT: dict[str, Any] = {
    "name": "ranker",
    "control": "control",
    "variants": {"control": 0.5, "treatment": 0.5},
    "exclude": {"role": ["teacher"], "user_id": ["test-*"]},
}


def _response(number: int, **fields: object) -> dict[str, Any]:
    return {
        "response_id": f"r{number}",
        "timestamp": START,
        "experiment": "ranker",
        "variant": "control",
        "items": [{"item_id": "video-1", "position": 1}],
        "user_id": f"s{number}",
        **fields,
    }


def test_excluded_responses_of_files_are_left_out_and_reported(tmp_path: Path) -> None:
    """Of two copies of a response, the one that is not excluded counts, in any order."""
    ratings = [
        {"feedback_id": "f", "response_id": f"r{number}", "timestamp": START, "kind": "rating", "item_id": "video-1",
         "score": 4}
        for number in range(1, 5)
    ]  # fmt: skip
    copies = [_response(4, role="teacher"), _response(4)]
    settings = parse_settings({"experiments": [_EXPERIMENT]}, {})
    for ordered_copies in (copies, copies[::-1]):
        events = [_response(1), _response(2, role="teacher"), _response(3, user_id="test-3"), *ordered_copies, *ratings]
        path = tmp_path / "events.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        reports: list[str] = []
        for read in (read_judged_responses, read_ratings):
            source = FileSource([EventFile(str(path))], RecordDecoder(settings), report=reports.append)
            assert len(read(source, settings, lambda: START)["ranker"]) == 2
            source.close()
        assert reports == ["3 responses excluded: a rule of exclude matches, of experiment ranker or of its source"] * 2
