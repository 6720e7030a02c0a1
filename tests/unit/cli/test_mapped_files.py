"""Files of another producer: every command that reads events maps their lines, and finds what native lines give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main

EXPERIMENT = """
[store]
url = "embedded:{name}"
[[experiments]]
name = "ranker"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
"""
SOURCES = """
[[kafka.sources]]
topics = ["answers"]
event = "response"
when = { type = "answer" }
[kafka.sources.fields]
response_id = "id"
timestamp = { from = "at", as = "s" }
experiment = { constant = "ranker" }
variant = { from = "arm", values = { A = "control", B = "treatment" } }
user_id = "user.id"
query_id = "q"
items = { each = "hits", item_id = "doc", position = "rank", base = 0 }

[[kafka.sources]]
topics = ["votes"]
event = "feedback"
each = "votes"
[kafka.sources.fields]
feedback_id = { derive = ["answer", "by", "$element.doc"] }
response_id = "answer"
timestamp = { from = "at", as = "s" }
user_id = "by"
kind = { constant = "rating" }
item_id = "$element.doc"
score = "$element.stars"
"""
START_S = 1_795_600_000


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the same events in both forms."""
    monkeypatch.chdir(tmp_path)
    responses: list[dict[str, Any]] = []
    feedback: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = [{"type": "ping"}]
    votes: list[dict[str, Any]] = []
    for number in range(1, 41):
        at_s = START_S + 60 * number
        documents = [number + rank for rank in range(4)]
        answers.append(
            {
                "type": "answer",
                "id": number,
                "at": at_s,
                "arm": "AB"[number % 2],
                "user": {"id": number % 7 + 1},
                "q": number % 5,
                "hits": [{"doc": document, "rank": rank} for rank, document in enumerate(documents)],
            }
        )
        responses.append(
            {
                "response_id": str(number),
                "timestamp": at_s * 1000,
                "experiment": "ranker",
                "variant": ("control", "treatment")[number % 2],
                "user_id": str(number % 7 + 1),
                "query_id": str(number % 5),
                "items": [{"item_id": str(document), "position": i} for i, document in enumerate(documents, start=1)],
            }
        )
        for rater in (100, 101):
            stars = [{"doc": document, "stars": (document + rater) % 5} for document in documents[:3]]
            votes += [{"answer": number, "by": rater, "at": at_s + 9, "votes": stars}] * 2
            feedback += [
                {
                    "feedback_id": f"{number} {rater} {star['doc']}", "response_id": str(number),
                    "timestamp": (at_s + 9) * 1000, "user_id": str(rater), "kind": "rating",
                    "item_id": str(star["doc"]), "score": star["stars"],
                }
                for star in stars
            ]  # fmt: skip
    for name, lines in (("answers", answers), ("votes", votes), ("responses", responses), ("feedback", feedback)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("native.toml").write_text(EXPERIMENT.format(name="native"))
    Path("mapped.toml").write_text(EXPERIMENT.format(name="mapped") + SOURCES)


def _rounded(text: str) -> Any:
    """Return JSON with 9 decimals, because the order of lines changes the last digits of a mean."""
    return json.loads(text, parse_float=lambda digits: round(float(digits), 9))


MAPPED_FILES = ["answers=answers.jsonl", "votes=votes.jsonl"]
NATIVE_FILES = ["responses.jsonl", "feedback.jsonl"]


@pytest.mark.parametrize("files", [MAPPED_FILES, ["answers.jsonl", "votes.jsonl"]], ids=["topics", "no topics"])
@pytest.mark.parametrize("command", ["evaluate", "items", "agreement"])
def test_an_analysis_of_mapped_files_is_that_of_native_files(
    command: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With or without the topics of the files."""
    assert main([command, "--config", "native.toml", "--json", *NATIVE_FILES]) == 0
    native = _rounded(capsys.readouterr().out)
    assert main([command, "--config", "mapped.toml", "--json", *files]) == 0
    assert _rounded(capsys.readouterr().out) == native


def test_a_replay_of_mapped_files_stores_the_sums_of_native_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Events that were sent twice count once, and other messages are ignored."""
    summaries = []
    for name, files in (("native", NATIVE_FILES), ("mapped", MAPPED_FILES)):
        assert main(["replay", "--config", f"{name}.toml", *files]) == 0
        outcome = capsys.readouterr().err.splitlines()[-1]
        assert main(["status", "--config", f"{name}.toml", "--json"]) == 0
        summaries.append(json.loads(capsys.readouterr().out)["experiments"]["ranker"]["variants"])
    assert outcome == "replayed: 201 lines: applied 280, duplicate 240, ignored 1"
    for native, mapped in zip(*(summary.values() for summary in summaries), strict=True):
        assert native["metrics"] == mapped["metrics"]
        assert native["responses"] == mapped["responses"] == 20


def test_a_file_is_read_again_after_its_mapping_was_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    """The position of a file belongs to its content, its topic and the mapping."""
    Path("wrong.toml").write_text(
        Path("mapped.toml").read_text().replace('variant = { from = "arm"', 'variant = { from = "a"')
    )
    reports = {
        "wrong": "missing_field: variant: no value at a (in all 40)",
        "mapped": "applied 40",
    }
    for name in ("wrong", "mapped"):
        main(["replay", "--config", f"{name}.toml", *MAPPED_FILES])
        assert reports[name] in capsys.readouterr().err
    main(["replay", "--config", "mapped.toml", *MAPPED_FILES])
    assert "nothing new" in capsys.readouterr().err


def test_a_misspelt_topic_is_named_with_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of a file that does not exist."""
    assert main(["replay", "--config", "mapped.toml", "answrs=answers.jsonl"]) == 2
    assert (
        "answrs=answers.jsonl: neither a file, nor a file after one of the topics answers, votes"
        in capsys.readouterr().err
    )
