"""The command `items` on event files: JSON, tables, and errors."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis import ResponseWithFeedback, count_students_by_category
from monitor.analysis.item_sums import ItemSums, StoredItems
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
    item_list = [{"item_id": item, "position": position} for position, item in enumerate(items, start=1)]
    timestamp = f"2026-11-{day:02}T10:00:00Z"
    return {
        "response_id": name,
        "timestamp": timestamp,
        "experiment": "e",
        "variant": variant,
        "items": item_list,
        **more,
    }


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


def run_items(tmp_path: Path, events: list[Event], *options: str, config: str = CONFIG) -> int:
    """Run the command; return its exit code."""
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return main(["items", "--config", str(tmp_path / "config.toml"), str(tmp_path / "events.jsonl"), *options])


def items_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[Event], *options: str) -> Any:
    """Return the JSON of the command for the experiment."""
    assert run_items(tmp_path, events, "--json", *options) == 0
    return json.loads(capsys.readouterr().out)["e"]


class TestItemsJson:
    """The JSON object."""

    def test_shown_items_and_coverage_are_counted_by_variant(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Empty answers, different items, the share of the catalogue, and the most frequent items."""
        (tmp_path / "catalogue").write_text("\ufeffx\ny\nk\n\nnever\n")
        variants = items_json(tmp_path, capsys, EVENTS, "--catalogue", str(tmp_path / "catalogue"), "--top", "1")[
            "variants"
        ]
        assert variants["a"] == {
            "responses": 3, "empty_share": pytest.approx(1 / 3), "items": 2, "coverage": 0.5,
            "most_shown": {"leaders": [["x", 2]], "others": 1, "rest": 1, "at_most": 1},
        }  # fmt: skip
        assert variants["b"]["most_shown"] == {"leaders": [["k", 3]], "others": 1, "rest": 1, "at_most": 1}

    def test_items_are_ordered_by_the_lower_bounds_of_their_ratings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The latest rating by a student counts; ratings of items that were not shown do not count."""
        experiment = items_json(tmp_path, capsys, EVENTS)
        assert [(item["item"], item["ratings"], item["mean"]) for item in experiment["items"]] == [
            ("x", 3, 4.5), ("k", 3, 2.0),
        ]  # fmt: skip
        assert experiment["items"][0]["good_share"] == 1
        assert experiment["unrated"] == 1

    def test_the_prior_of_an_item_has_one_rating_of_each_grade(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The grades are the integers from --lowest-grade (default: 0), or the grades of the gain table."""
        single = [EVENTS[0], feedback("f1", "r1", "rating", 5, item="x")]
        (from_0,) = items_json(tmp_path, capsys, single)["items"]
        (from_1,) = items_json(tmp_path, capsys, single, "--lowest-grade", "1")["items"]
        assert from_1["mean_lower"] == pytest.approx(2.2290187329008777)
        assert from_0["mean_lower"] < from_1["mean_lower"]
        table = CONFIG + 'gain = { "1" = 0, "2" = 1, "3" = 2, "4" = 5, "5" = 9 }\n'
        assert run_items(tmp_path, single, "--json", config=table) == 0
        assert json.loads(capsys.readouterr().out)["e"]["items"] == [from_1]

    def test_triage_entries_are_empty_or_badly_rated_answers(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of several reviews the latest counts, also a week after the answer."""
        entries = items_json(tmp_path, capsys, EVENTS)["first_to_look_at"]
        assert [(entry["name"], entry["today"]) for entry in entries] == [("q3", 7), ("q2", 2)]
        assert [(entry["bad"], entry["responses"], entry["bad_share"]) for entry in entries] == [(7, 7, 1), (2, 2, 1)]
        by_item = items_json(tmp_path, capsys, EVENTS, "--by", "item")["first_to_look_at"]
        assert [(entry["name"], entry["today"]) for entry in by_item] == [("k", 8), ("x", 1)]
        by_category = items_json(tmp_path, capsys, EVENTS, "--by", "category")["first_to_look_at"]
        assert [(entry["name"], entry["today"]) for entry in by_category] == [("sums", 1)]

    def test_entries_are_ranked_by_their_share_or_by_the_published_urgency(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Three bad of six come before four of forty; Wilson's bounds by hand: 0.1876 and 0.0396."""
        sums = [response(f"s{n}", "a", *([] if n < 4 else ["x"]), category="sums") for n in range(40)]
        essays = [response(f"e{n}", "b", *([] if n < 3 else ["x"]), category="essays") for n in range(6)]
        old = [response(f"o{n}", "a", "x", category="essays") for n in range(9)]
        events = [*sums, *essays, *[{**event, "timestamp": "2026-10-30T10:00:00Z"} for event in old]]
        by_share = items_json(tmp_path, capsys, events, "--by", "category")["first_to_look_at"]
        assert [
            (entry["name"], entry["bad"], entry["responses"], round(entry["priority"], 4)) for entry in by_share
        ] == [
            ("essays", 3, 6, 0.1876),
            ("sums", 4, 40, 0.0396),
        ]
        by_urgency = items_json(tmp_path, capsys, events, "--by", "category", "--rank-by", "urgency")[
            "first_to_look_at"
        ]
        assert [(entry["name"], round(entry["priority"], 4)) for entry in by_urgency] == [
            ("sums", round(1 / (1 + math.exp(4 - 2.8)), 4)),
            ("essays", round(1 / (1 + math.exp(4 - 2.1)), 4)),
        ]

    def test_results_do_not_depend_on_the_order_of_events(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Repeated events do not change the results either."""
        expected = items_json(tmp_path, capsys, EVENTS, "--since", "2026-11-10T10:00:00Z")
        for seed in range(5):
            shuffled = random.Random(seed).sample(EVENTS * 2, 2 * len(EVENTS))
            assert items_json(tmp_path, capsys, shuffled, "--since", "2026-11-10T10:00:00Z") == expected

    def test_a_change_of_the_categories_is_detected(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The drift is measured over students."""
        before = [response(f"r{n}", "a", user_id=f"u{n}", category="sums", day=1) for n in range(30)]
        now = [response(f"s{n}", "a", user_id=f"u{n}", category="essays") for n in range(20)]
        drift = items_json(tmp_path, capsys, [*before, *now, *before], "--since", "2026-11-05T00:00:00Z")["drift"]
        assert (drift["observations"], drift["reference"], drift["cells"]) == (20, 30, 2)
        assert drift["psi"]["exceeded"]
        assert drift["js"]["value"] == 1
        assert items_json(tmp_path, capsys, [*before, *now])["drift"] is None


def test_a_student_counts_once_on_each_side() -> None:
    """The first question of a student on each side counts; of two at the same time, the smaller category."""
    questions = [(5, "s", "late"), (1, "s", "b"), (1, "s", "a"), (9, "s", "now"), (8, "t", "now"), (0, "u", None)]
    answers = [
        ResponseWithFeedback("a", timestamp_ms, student, None, category, (), (), None)
        for timestamp_ms, student, category in questions
    ]
    assert count_students_by_category(answers, 8) == ({"now": 2}, {"a": 1})


class TestItemsTables:
    """The tables in a terminal."""

    def test_tables_contain_all_results(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ids are printed without markup; missing values are dashes."""
        monkeypatch.setenv("COLUMNS", "100")
        odd = [*EVENTS, response("r7", "a", "[red]", query_id="q5"), feedback("f", "r7", "rating", 1, item="[red]")]
        assert run_items(tmp_path, odd, "--since", "2026-11-09T00:00:00Z") == 0
        output = capsys.readouterr().out
        for part in (
            "[red]",
            "3 items are rated; 1 was shown and not rated.",
            "2 students since that time, 0 before",
            "q3",
            "Jensen-Shannon",
        ):
            assert part in output
        assert "–" in output

    def test_a_changed_distance_is_marked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The mark is next to the name of the distance."""
        sides = [response(f"r{n}", "a", category=f"c{n % 2}", day=1 + n % 2) for n in range(60)]
        assert run_items(tmp_path, sides, "--since", "2026-11-02T00:00:00Z") == 0
        assert "population stability index (changed)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "0"], "--top: got 0, expected at least 1"),
        (["--lowest-grade", "5"], "--lowest-grade: got 5, expected 0 or more and below 5, e"),
        (["--catalogue", "/nowhere"], '--catalogue: got "/nowhere", expected a readable text file in UTF-8'),
        (["--since", "soon"], '--since: got "soon", expected'),
        (["--experiment", "f"], '--experiment: got "f", expected one of e'),
    ],
)
def test_wrong_options_are_rejected_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """The line has the option, the value and the expectation."""
    assert run_items(tmp_path, EVENTS, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_experiment_instead_of_a_file_needs_worst_or_attention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command suggests the options for experiments in the store."""
    config = tmp_path / "c.toml"
    config.write_text(CONFIG)
    assert main(["items", "--config", str(config), "e"]) == 2
    assert "items: e is an experiment and no file: add --worst N or --attention N" in capsys.readouterr().err


def test_items_outside_the_catalogue_are_counted_under_one_name() -> None:
    """The name may be in `most_shown`."""
    sums = {
        "x": ItemSums(shown_count=2),
        "k": ItemSums(shown_count=1),
        "(not in the catalogue)": ItemSums(shown_count=5),
    }
    variant_json = StoredItems(0, {"a": sums}, {"x", "k", "y", "z"}, (0, 1))._variant_json(sums, 3)
    assert (variant_json["items"], variant_json["coverage"]) == (2, 0.5)
    assert StoredItems(0, {"a": sums}, (), (0, 1))._variant_json(sums, 3)["items"] == 3


def test_diversity_is_computed_from_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: x and k share a topic, so y is re-ranked to the second rank; a single item has diversity 1."""
    config, events, topics = tmp_path / "c.toml", tmp_path / "e.jsonl", tmp_path / "t.json"
    config.write_text(CONFIG)
    responses = [response("r1", "a", "x", "k", "y"), response("r2", "b", "x"), response("r3", "b", "unknown")]
    # The ranking is defined by the positions, not by the order of the array.
    responses[0]["items"].reverse()
    events.write_text("".join(json.dumps(event) + "\n" for event in responses))
    topics.write_text(json.dumps({"x": ["sums"], "k": ["sums"], "y": ["prose"]}))
    arguments = ["items", "--config", str(config), str(events), "--json", "--topics", str(topics)]
    assert main([*arguments, "--mmr-lambda", "0.5"]) == 0
    diversities = json.loads(capsys.readouterr().out)["e"]["variety"]
    best = 1 + 1 / math.log2(3) + 0.5 / math.log2(4)
    assert diversities["a"] == {
        "answers": 1,
        "alpha_ndcg": pytest.approx((1 + 0.5 / math.log2(3) + 1 / math.log2(4)) / best),
        "similarity": pytest.approx(1 / 3),
        "reranked_alpha_ndcg": pytest.approx(1.0),
        "moved": 1.0,
    }
    assert diversities["b"] == {"answers": 1, "alpha_ndcg": 1, "similarity": None, "reranked_alpha_ndcg": 1, "moved": 0}
    assert main([*arguments, "--mmr-lambda", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["e"]["variety"]["a"]["moved"] == 0
    topics.write_text("[1]")
    for wrong in (arguments, [*arguments[:-1], "/nowhere"], [*arguments[:-2], "--mmr-lambda", "2"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
