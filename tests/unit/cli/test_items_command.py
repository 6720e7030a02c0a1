"""`items`: files of events in, everything about items out."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis import Answer, categories
from monitor.analysis.item_sums import StoredItems, Sums
from monitor.cli.command_line import main

CONFIG = """
[[experiments]]
name = "e"
control = "a"
variants = { a = 0.5, b = 0.5 }
max_grade = 5
relevant_grade = 4
"""
Event = dict[str, Any]


def response(name: str, variant: str, *items: str, day: int = 10, **more: str) -> Event:
    """Return a response at ten o'clock of a day of November."""
    shown = [{"item_id": item, "position": at} for at, item in enumerate(items, start=1)]
    at = f"2026-11-{day:02}T10:00:00Z"
    return {"response_id": name, "timestamp": at, "experiment": "e", "variant": variant, "items": shown, **more}


def feedback(name: str, of: str, kind: str, score: float | None, *, item: str | None = None, **more: str) -> Event:
    """Return a reaction one minute after ten."""
    event = {"feedback_id": name, "response_id": of, "timestamp": "2026-11-10T10:01:00Z", "kind": kind, **more}
    optional = {"score": score, "item_id": item}
    return {**event, **{key: value for key, value in optional.items() if value is not None}}


EVENTS = [
    response("r1", "a", "x", "y", user_id="u1", query_id="q1", category="sums"),
    response("r2", "a", user_id="u2", query_id="q2", category="sums"),
    response("r3", "b", "x", "k", user_id="u3", query_id="q2"),
    response("r4", "b", "k", user_id="u3", query_id="q3"),
    response("r5", "b", "k", user_id="u4", query_id="q3"),
    response("r6", "b", query_id="q4"),
    response("just good", "a", "x", query_id="q5"),
    feedback("f1", "r1", "rating", 5, item="x"),
    feedback("f2", "r1", "rating", 4.5, item="x", user_id="u9"),
    feedback("f3", "r1", "rating", 5, item="not shown"),
    feedback("f4", "r3", "rating", 1, item="k"),
    feedback("f5", "r3", "rating", 2, item="k", timestamp="2026-11-10T10:02:00Z"),
    feedback("f6", "r4", "rating", 1, item="k"),
    feedback("f7", "r5", "rating", 3, item="k"),
    feedback("g1", "just good", "rating", 4, item="x"),
    feedback("f8", "r6", "reviewed", None, timestamp="2026-11-18T10:00:00Z", user_id="analyst"),
    feedback("f9", "r5", "reviewed", 6, timestamp="2026-11-13T10:00:00Z", user_id="analyst"),
    feedback("f0", "r5", "reviewed", 1, timestamp="2026-11-12T10:00:00Z", user_id="analyst"),
]


def items(tmp_path: Path, events: list[Event], *options: str, config: str = CONFIG) -> int:
    """Run the command; return its exit code."""
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return main(["items", "--config", str(tmp_path / "config.toml"), str(tmp_path / "events.jsonl"), *options])


def found(tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[Event], *options: str) -> Any:
    """Return what the command says of the experiment in JSON."""
    assert items(tmp_path, events, "--json", *options) == 0
    return json.loads(capsys.readouterr().out)["e"]


class TestJson:
    """What it says."""

    def test_what_is_shown(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """By variant: empty answers, different items, the share of the catalogue, the most frequent."""
        (tmp_path / "catalogue").write_text("\ufeffx\ny\nk\n\nnever\n")
        told = found(tmp_path, capsys, EVENTS, "--catalogue", str(tmp_path / "catalogue"), "--top", "1")["variants"]
        assert told["a"] == {
            "responses": 3, "empty_share": pytest.approx(1 / 3), "items": 2, "coverage": 0.5,
            "most_shown": {"leaders": [["x", 2]], "others": 1, "rest": 1, "at_most": 1},
        }  # fmt: skip
        assert told["b"]["most_shown"] == {"leaders": [["k", 3]], "others": 1, "rest": 1, "at_most": 1}

    def test_what_ratings_are_worth(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The latest of a student in a response; items not shown do not count, those not rated have no score."""
        told = found(tmp_path, capsys, EVENTS)
        assert [(each["item"], each["ratings"], each["mean"]) for each in told["items"]] == [
            ("x", 3, 4.5), ("k", 3, 2.0),
        ]  # fmt: skip
        assert told["items"][0]["good_share"] == 1
        assert told["unrated"] == 1

    def test_the_prior_is_the_scale(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """One of each grade from 0 or from the lowest; of a gain table, one of each that it knows."""
        single = [EVENTS[0], feedback("f1", "r1", "rating", 5, item="x")]
        (from_0,) = found(tmp_path, capsys, single)["items"]
        (from_1,) = found(tmp_path, capsys, single, "--lowest-grade", "1")["items"]
        assert from_1["mean_lower"] == pytest.approx(2.2290187329008777)
        assert from_0["mean_lower"] < from_1["mean_lower"]
        table = CONFIG + 'gain = { "1" = 0, "2" = 1, "3" = 2, "4" = 5, "5" = 9 }\n'
        assert items(tmp_path, single, "--json", config=table) == 0
        assert json.loads(capsys.readouterr().out)["e"]["items"] == [from_1]

    def test_what_to_look_at_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Empty answers and rated ones without a good item; the latest review counts, a week later, too."""
        told = found(tmp_path, capsys, EVENTS)["first_to_look_at"]
        assert [(each["name"], each["today"]) for each in told] == [("q3", 7), ("q2", 2)]
        by_item = found(tmp_path, capsys, EVENTS, "--by", "item")["first_to_look_at"]
        assert [(each["name"], each["today"]) for each in by_item] == [("k", 8), ("x", 1)]
        by_category = found(tmp_path, capsys, EVENTS, "--by", "category")["first_to_look_at"]
        assert [(each["name"], each["today"]) for each in by_category] == [("sums", 1)]

    def test_no_order_of_events_changes_a_digit(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Nor does an event that comes twice."""
        told = found(tmp_path, capsys, EVENTS, "--since", "2026-11-10T10:00:00Z")
        for seed in range(5):
            shuffled = random.Random(seed).sample(EVENTS * 2, 2 * len(EVENTS))
            assert found(tmp_path, capsys, shuffled, "--since", "2026-11-10T10:00:00Z") == told

    def test_categories_that_change(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Students are counted, and a real change is one."""
        before = [response(f"r{n}", "a", user_id=f"u{n}", category="sums", day=1) for n in range(30)]
        now = [response(f"s{n}", "a", user_id=f"u{n}", category="essays") for n in range(20)]
        told = found(tmp_path, capsys, [*before, *now, *before], "--since", "2026-11-05T00:00:00Z")["drift"]
        assert (told["observations"], told["reference"], told["cells"]) == (20, 30, 2)
        assert told["psi"]["exceeded"]
        assert told["js"]["value"] == 1
        assert found(tmp_path, capsys, [*before, *now])["drift"] is None


def test_a_student_counts_once_on_each_side() -> None:
    """With the first question there; the name decides between two at once."""
    asked = [(5, "s", "late"), (1, "s", "b"), (1, "s", "a"), (9, "s", "now"), (8, "t", "now"), (0, "u", None)]
    answers = [Answer("a", at, student, None, category, (), (), None) for at, student, category in asked]
    assert categories(answers, 8) == ({"now": 2}, {"a": 1})


class TestTables:
    """The same for people."""

    def test_everything_is_there(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ids are text, whatever they look like; what has no value is a dash."""
        monkeypatch.setenv("COLUMNS", "100")
        odd = [*EVENTS, response("r7", "a", "[red]", query_id="q5"), feedback("f", "r7", "rating", 1, item="[red]")]
        assert items(tmp_path, odd, "--since", "2026-11-09T00:00:00Z") == 0
        told = capsys.readouterr().out
        for part in (
            "[red]",
            "3 items are rated, 1 are shown and unrated",
            "2 students since then, 0 before",
            "q3",
            "Jensen-Shannon",
        ):
            assert part in told
        assert "–" in told

    def test_a_change_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Beside the distance."""
        sides = [response(f"r{n}", "a", category=f"c{n % 2}", day=1 + n % 2) for n in range(60)]
        assert items(tmp_path, sides, "--since", "2026-11-02T00:00:00Z") == 0
        assert "population stability index (changed)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "0"], "--top: got 0, expected at least 1"),
        (["--lowest-grade", "5"], "--lowest-grade: got 5, expected 0 or more and below 5, e"),
        (["--catalogue", "/nowhere"], "--catalogue: got '/nowhere', expected a file of UTF-8 that can be read"),
        (["--since", "soon"], "--since: got 'soon', expected"),
        (["--experiment", "f"], "--experiment: got 'f', expected one of e"),
    ],
)
def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    """One line that names the option, the value and what was expected."""
    assert items(tmp_path, EVENTS, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_experiment_in_the_place_of_a_file_is_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the two ways to ask, the other was meant."""
    config = tmp_path / "c.toml"
    config.write_text(CONFIG)
    assert main(["items", "--config", str(config), "e"]) == 2
    assert "items: e is an experiment and no file: add --worst N or --attention N" in capsys.readouterr().err


def test_what_is_not_in_the_catalogue_is_no_item_of_it() -> None:
    """It is counted under one name, which `most_shown` may have."""
    own = {"x": Sums(shown=2), "k": Sums(shown=1), "(not in the catalogue)": Sums(shown=5)}
    told = StoredItems(0, {"a": own}, {"x", "k", "y", "z"}, (0, 1))._variant_json(own, 3)
    assert (told["items"], told["coverage"]) == (2, 0.5)
    assert StoredItems(0, {"a": own}, (), (0, 1))._variant_json(own, 3)["items"] == 3


def test_variety_needs_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: x and k share a topic, so y comes second; the answer of one item is as varied as it can be."""
    config, events, topics = tmp_path / "c.toml", tmp_path / "e.jsonl", tmp_path / "t.json"
    config.write_text(CONFIG)
    shown = [response("r1", "a", "x", "k", "y"), response("r2", "b", "x"), response("r3", "b", "unknown")]
    # Positions say what comes first, not places in the array.
    shown[0]["items"].reverse()
    events.write_text("".join(json.dumps(each) + "\n" for each in shown))
    topics.write_text(json.dumps({"x": ["sums"], "k": ["sums"], "y": ["prose"]}))
    given = ["items", "--config", str(config), str(events), "--json", "--topics", str(topics)]
    assert main([*given, "--novelty", "0.5"]) == 0
    told = json.loads(capsys.readouterr().out)["e"]["variety"]
    best = 1 + 1 / math.log2(3) + 0.5 / math.log2(4)
    assert told["a"] == {
        "answers": 1,
        "alpha_ndcg": pytest.approx((1 + 0.5 / math.log2(3) + 1 / math.log2(4)) / best),
        "similarity": pytest.approx(1 / 3),
        "reranked_alpha_ndcg": pytest.approx(1.0),
        "moved": 1.0,
    }
    assert told["b"] == {"answers": 1, "alpha_ndcg": 1, "similarity": None, "reranked_alpha_ndcg": 1, "moved": 0}
    assert main([*given, "--novelty", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["e"]["variety"]["a"]["moved"] == 0
    topics.write_text("[1]")
    for wrong in (given, [*given[:-1], "/nowhere"], [*given[:-2], "--novelty", "2"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
