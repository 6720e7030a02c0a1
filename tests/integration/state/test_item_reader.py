"""Stored counts of items: equal to a recomputation in any order, the requests that read them, and their expiry."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.shown_items import top_k
from monitor.analysis.triage import rank_for_review
from monitor.app import answer_items_request
from monitor.config import ItemSettings
from monitor.errors import UsageError
from monitor.events import Feedback, Response
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import Position, PositionUpdate
from monitor.state.aggregate_audit import audit_aggregates
from monitor.state.item_reader import OTHER_ITEMS_NAME, ItemReader
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor
from tests.support.oracle import DAY_MS, ExpectedResponse, compute_expected_responses
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import EXPERIMENT, HOUR, START, streams

GRADES = [0.0, 1.0, 2.0, 3.0, 4.0]


def _reader(bench: StoreBench) -> ItemReader:
    return bench.reader.item_reader("ranker")


def _expected(
    judged: Sequence[ExpectedResponse], catalogue: frozenset[str] | None = None
) -> dict[str, dict[str, list[float]]]:
    """Return variant → item → [shown, ratings, good, Σ grade, Σ grade²]."""
    expected_counts: dict[str, dict[str, list[float]]] = {"control": {}, "treatment": {}}
    for expected_response in judged:
        variant_counts = expected_counts[expected_response.response.variant]

        def counts_of(item: str, variant_counts: dict[str, list[float]] = variant_counts) -> list[float]:
            counted_item = item if catalogue is None or item in catalogue else OTHER_ITEMS_NAME
            return variant_counts.setdefault(counted_item, [0, 0, 0, 0.0, 0.0])

        for item in expected_response.response.items:
            counts_of(item)[0] += 1
        for (_, item), grade in expected_response.ratings.items():
            for index, addend in enumerate((1, grade >= EXPERIMENT.relevant_grade, grade, grade * grade), 1):
                counts_of(item)[index] += addend
    return expected_counts


def _bad(judged: Sequence[ExpectedResponse], by: str) -> dict[str, Counter[int]]:
    bad_answers: dict[str, Counter[int]] = defaultdict(Counter)
    for expected_response in judged:
        grades = expected_response.ratings.values()
        if expected_response.response.items and (not grades or max(grades) >= EXPERIMENT.relevant_grade):
            continue
        weight = (
            1
            if expected_response.latest_review is None or expected_response.latest_review < 1
            else 0
            if expected_response.latest_review < 2
            else int(expected_response.latest_review)
        )
        category = expected_response.response.category
        counted_category = category if category in EXPERIMENT.categories else "other"
        for entry in (
            expected_response.response.items if by == "item" else [] if category is None else [counted_category]
        ):
            bad_answers[entry][expected_response.response.timestamp_ms // DAY_MS] += weight
    return bad_answers


def _recent_responses(judged: Sequence[ExpectedResponse], by: str, today: int) -> dict[str, int]:
    """Return the responses of ten days by entry; items are counted in slices of three days."""
    responses: dict[str, float] = defaultdict(float)
    for response in (expected_response.response for expected_response in judged):
        day, first_day = response.timestamp_ms // DAY_MS, today - 9
        if by == "category":
            if response.category is not None and first_day <= day <= today:
                responses[response.category if response.category in EXPERIMENT.categories else "other"] += 1
        else:
            slice_days = [slice_day for slice_day in range(day // 3 * 3, day // 3 * 3 + 3) if slice_day <= today]
            recent_days = [slice_day for slice_day in slice_days if slice_day >= first_day]
            for item in response.items:
                responses[item] += len(recent_days) / len(slice_days)
    return {entry: round(count) for entry, count in responses.items()}


def test_variants_without_responses_are_listed(redis_server: RedisServer) -> None:
    """A variant without responses has no items."""
    items_json = (
        _reader(StoreBench(redis_server, replace(EXPERIMENT, items=ItemSettings(30)))).read_items(GRADES).to_json(5)
    )
    empty_catalogue = {"items": 0, "coverage": None, "most_shown": top_k({}, 5).to_json()}
    assert items_json == {
        "variants": {"control": empty_catalogue, "treatment": empty_catalogue},
        "worst": [],
        "unrated": 0,
    }


@pytest.mark.parametrize(("one_in", "coverage"), [(1, 0.0), (2, None)])
def test_a_sampled_catalogue_has_no_coverage(redis_server: RedisServer, one_in: int, coverage: float | None) -> None:
    """Items outside the sample are not counted."""
    items = ItemSettings(30, catalogue=frozenset({"video-1"}), sample_one_in=one_in)
    items_json: Any = _reader(StoreBench(redis_server, replace(EXPERIMENT, items=items))).read_items(GRADES).to_json(5)
    assert items_json["variants"]["control"]["coverage"] == coverage


@settings(max_examples=25, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(events=streams(), shards=st.sampled_from([1, 3]), catalogue_item=st.sampled_from([None, "video-1 video-2"]))
def test_item_counts_equal_a_recomputation_from_events(
    events: Sequence[Response | Feedback], shards: int, catalogue_item: str | None, redis_server: RedisServer
) -> None:
    """Counts by variant and item, and the ranking for review by item and category."""
    catalogue = None if catalogue_item is None else frozenset(catalogue_item.split())
    experiment = replace(EXPERIMENT, items=ItemSettings(30, catalogue=catalogue, expected_items=20))
    bench = StoreBench(redis_server, experiment, shard_count=shards)
    bench.apply([events])
    judged = compute_expected_responses(EXPERIMENT, events)
    stored_items = _reader(bench).read_items(GRADES)
    stored_counts = {
        variant: {
            name: [s.shown_count, s.rating_count, s.good_rating_count, s.grade_sum, s.grade_square_sum]
            for name, s in variant_items.items()
        }
        for variant, variant_items in stored_items.by_variant.items()
    }
    assert stored_counts == _expected(judged, catalogue)
    if judged and catalogue is None:
        today = max(expected_response.response.timestamp_ms for expected_response in judged) // DAY_MS
        for by in ("item", "category"):
            for ranking in ("share", "urgency"):
                expected = rank_for_review(
                    _bad(judged, by), _recent_responses(judged, by, today), today, ranking=ranking
                )
                assert _reader(bench).read_review_ranking(by, ranking) == expected


def _rated(counts: dict[float, int], item: str = "video-1") -> list[Response | Feedback]:
    """Return a response of each student, with a rating each."""
    grades = [grade for grade, count in counts.items() for _ in range(count)]
    events: list[Response | Feedback] = []
    for number, grade in enumerate(grades):
        name = f"{item}-{number}"
        events.append(Response(name, START + number, "ranker", "control", (item,), user_id=f"s-{number}"))
        events.append(Feedback("f", name, START + number + 1, "rating", item_id=item, score=grade))
    return events


def _counts_of(vector: dict[str, Any]) -> dict[float, int]:
    """Return the ratings of a published example: of one to five stars, or good (4) and bad (1)."""
    inputs = vector["inputs"]
    if vector["metric"] == "wilson_lower":
        return {4.0: inputs["pos"], 1.0: inputs["n"] - inputs["pos"]}
    return {float(star): count for star, count in enumerate(inputs["counts"], start=1)}


def test_published_item_scores_are_reproduced_from_the_store(shared: Path, redis_server: RedisServer) -> None:
    """Wilson's and the stars' bounds of every worked example, each an item; unrated is no score."""
    given_vectors = json.loads((shared / "vectors" / "seed_vectors.json").read_text("utf-8"))["vectors"]
    vectors = [case for case in given_vectors if case["metric"] in {"wilson_lower", "bayes_star_lower"}]
    bench = StoreBench(redis_server, replace(EXPERIMENT, max_grade=5, decay=(), items=ItemSettings(30)))
    events = [event for case in vectors for event in _rated(_counts_of(case), case["id"])]
    unrated_responses = [
        Response(f"{case['id']} unrated", START, "ranker", "control", (case["id"],)) for case in vectors
    ]
    bench.apply([[*events, *unrated_responses]])
    stored_items = _reader(bench).read_items([1.0, 2.0, 3.0, 4.0, 5.0])
    scores = {item: score for item, _, score in stored_items.worst_items(100)}
    assert len(vectors) == 12
    for vector in vectors:
        if not sum(_counts_of(vector).values()):
            assert vector["id"] not in scores
            continue
        score = scores[vector["id"]]
        ours = score.good_lower if vector["metric"] == "wilson_lower" else score.mean_lower
        assert ours == pytest.approx(vector["expected"], rel=0, abs=1e-9), vector["id"]
    assert stored_items.count_unrated() == 2


@pytest.fixture
def bench(redis_server: RedisServer) -> StoreBench:
    """Return a store with three rated items and an unrated item."""
    filled_bench = StoreBench(redis_server)
    unrated = Response("unrated", START, "ranker", "treatment", ("video-4",), category="geometry")
    reactions = [*_rated({4.0: 3}, "video-1"), *_rated({0.0: 2}, "video-2"), *_rated({2.0: 1}, "video-3")]
    filled_bench.apply([[*reactions, unrated]])
    return filled_bench


class TestItemRequests:
    """Requests for items and for a ranking."""

    def test_the_worst_items_are_first_and_unrated_items_have_no_score(self, bench: StoreBench) -> None:
        """The lower bound decides; an item without ratings is not a bad item."""
        items_json = answer_items_request(bench.reader, "ranker/items", {"n": "2"})
        assert [entry["item"] for entry in items_json["worst"]] == ["video-2", "video-3"]
        assert (items_json["unrated"], items_json["worst"][0]["mean"], items_json["worst"][0]["ratings"]) == (1, 0.0, 2)
        assert items_json["variants"]["control"]["most_shown"]["leaders"] == (("video-1", 3), ("video-2", 2))

    def test_items_and_categories_for_review_are_ranked_by_urgency(self, bench: StoreBench) -> None:
        """The item with most bad answers is first; a reviewed item is not listed."""
        ranking_json = answer_items_request(bench.reader, "ranker/attention", {})
        assert [(entry["name"], entry["today"]) for entry in ranking_json["first"]] == [("video-2", 2), ("video-3", 1)]
        reviews = [Feedback("x", f"video-2-{number}", START + 30 * HOUR, "reviewed", score=1.0) for number in range(2)]
        store = bench.connect_writer()
        store.reload_state()
        assert bench.submit(store, reviews, PositionUpdate("t:1", None, Position(2))).result() == "applied"
        ranking_json = answer_items_request(bench.reader, "ranker/attention", {})
        assert [entry["name"] for entry in ranking_json["first"]] == ["video-3"]

    def test_categories_for_review_are_in_the_summary(self, redis_server: RedisServer) -> None:
        """Two empty answers about geometry, and one about another category."""
        bench = StoreBench(redis_server)
        categories = ["geometry", "geometry", "poetry", None]
        bench.apply(
            [[Response(f"r{n}", START, "ranker", "control", (), category=name) for n, name in enumerate(categories)]]
        )
        ranking = bench.reader.read_summary().experiments["ranker"].categories_for_review
        assert ranking is not None
        assert [(entry.name, entry.bad_answers_today) for entry in ranking] == [("geometry", 2), ("other", 1)]

    def test_the_review_order_is_by_the_share_of_bad_responses_of_ten_days(self, redis_server: RedisServer) -> None:
        """Three bad of six come before four of forty, in categories and items; responses of older days do not count.

        The slices of items have three days, so a slice that begins before the ten days counts in part.
        """
        experiment = replace(EXPERIMENT, items=ItemSettings(30), retention_ms=60 * DAY_MS)
        bench = StoreBench(redis_server, experiment)
        today = START // DAY_MS + 40

        def responses(name: str, category: str, count: int, day: int) -> list[Response]:
            variants = ("control", "treatment")
            return [
                Response(
                    f"{name}-{day}-{n}", day * DAY_MS + n, "ranker", variants[n % 2], (f"video-{name}",), None, None,
                    category=category,
                )
                for n in range(count)
            ]  # fmt: skip

        def bad_ratings(name: str, count: int, day: int) -> list[Feedback]:
            return [
                Feedback(f"f-{name}-{n}", f"{name}-{day}-{n}", day * DAY_MS + n, "rating", None, f"video-{name}", 0.0)
                for n in range(count)
            ]

        events: list[Response | Feedback] = [
            *responses("common", "geometry", 30, today), *responses("common", "geometry", 10, today - 9),
            *responses("common", "geometry", 90, today - 15), *responses("rare", "poetry", 6, today),
            *bad_ratings("common", 4, today), *bad_ratings("rare", 3, today),
        ]  # fmt: skip
        bench.apply([events])
        ranking = bench.reader.read_summary().experiments["ranker"].categories_for_review
        assert ranking is not None
        assert [(entry.name, entry.bad_answers, entry.responses) for entry in ranking] == [
            ("other", 3, 6),
            ("geometry", 4, 40),
        ]
        assert [round(entry.priority, 4) for entry in ranking] == [0.1876, 0.0396]
        by_item = answer_items_request(bench.reader, "ranker/attention", {})["first"]
        assert [(entry["name"], entry["bad"]) for entry in by_item] == [("video-rare", 3), ("video-common", 4)]
        first_day = (today - 9) // 3 * 3
        counted_days = first_day + 3 - (today - 9)
        assert by_item[1]["responses"] == 30 + round(10 * counted_days / 3)
        by_urgency = answer_items_request(bench.reader, "ranker/attention", {"rank_by": "urgency"})["first"]
        assert [entry["name"] for entry in by_urgency] == ["video-common", "video-rare"]
        with pytest.raises(UsageError, match='rank_by: got "x", expected one of share, urgency'):
            answer_items_request(bench.reader, "ranker/attention", {"rank_by": "x"})

    @pytest.mark.parametrize(
        ("path", "query"),
        [("ranker/items", {"n": "0"}), ("ranker/items", {"n": "-1"}), ("ranker/attention", {"by": "query"})],
    )
    def test_an_invalid_request_raises_an_error_with_the_expected_values(
        self, bench: StoreBench, path: str, query: dict[str, str]
    ) -> None:
        """The message contains the expected values."""
        with pytest.raises(UsageError, match="expected"):
            answer_items_request(bench.reader, path, query)
        with pytest.raises(KeyError):
            answer_items_request(bench.reader, "other/items", {})

    def test_an_experiment_that_counts_no_items_stores_none_and_raises_usage_error(
        self, redis_server: RedisServer
    ) -> None:
        """No item is stored, and the error names the configuration key."""
        bench = StoreBench(redis_server, replace(EXPERIMENT, items=None))
        bench.apply([_rated({4.0: 3})])
        names = [
            name
            for family in ("item_*", "bad_answer*")
            for name in bench.first_shard.client.scan_iter(f"abm:*:{family}:*")
        ]
        assert names == []
        with pytest.raises(UsageError, match=r"experiments\.ranker\.items"):
            answer_items_request(bench.reader, "ranker/items", {})


class TestItemExpiry:
    """The horizon slides."""

    def test_counts_and_ids_of_items_before_the_horizon_are_deleted(self, bench: StoreBench) -> None:
        """Counts and ids within the horizon stay."""
        later = START + 70 * DAY_MS
        writer = bench.connect_writer()
        writer.reload_state()
        step = PositionUpdate("t:1", None, Position(1, later))
        late = Response("late", later, "ranker", "control", ("video-9",))
        assert bench.submit(writer, [late], step).result() == "applied"
        _, store = bench.connect_engine()
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        progress.load_state(store.read_state())
        progress.update_end_offsets({"t:0": 13, "t:1": 1})
        progress.apply_position_updates(
            [PositionUpdate("t:0", 13, Position(13, later)), PositionUpdate("t:1", 1, Position(1, later))]
        )
        RetentionCleaner(store, [bench.experiment]).clean(progress)
        remaining_families = {
            bytes(name).split(b":")[3]
            for name in store.client.scan_iter("abm:*")
            if b":item_counts:" in name or b":item_ids:" in name
        }
        assert remaining_families == {b"item_counts", b"item_ids"}
        for index in (store.keys.item_index(1, 0), store.keys.item_id_index(1), store.keys.bad_answer_index(1)):
            assert store.client.zcard(index) == 1
        stored_items = _reader(bench).read_items(GRADES)
        assert {name: set(variant_items) for name, variant_items in stored_items.by_variant.items()} == {
            "control": {"video-9"},
            "treatment": set(),
        }

    def test_the_audit_reports_a_count_without_rows(self, bench: StoreBench) -> None:
        """A count that no row explains."""
        assert audit_aggregates(bench.store, bench.settings).differences == []
        name = next(bench.first_shard.client.scan_iter("abm:*:item_counts:1:0:*"))
        field = next(iter(bench.first_shard.client.hgetall(name)))
        bench.first_shard.client.hincrby(name, field, 1)
        (difference,) = audit_aggregates(bench.store, bench.settings).differences
        assert field[:-1].hex() in difference.integer_name


def test_the_items_command_prints_the_stored_counts(bench: StoreBench, tmp_path: Path) -> None:
    """`items E --worst N`, `--attention N`, and the errors of invalid calls."""
    config = tmp_path / "c.toml"
    settings_text = (
        f'[store]\nurl = "{bench.settings.store.url}"\n[[experiments]]\nname = "shop"\ncontrol = "control"\n'
        'variants = { control = 0.5, treatment = 0.5 }\nitems = "30d"\n'
    )
    config.write_text(settings_text)
    events = tmp_path / "e.jsonl"
    lines = [
        {
            "response_id": "r", "timestamp": START, "experiment": "shop", "variant": "control",
            "items": [{"item_id": "[b]", "position": 1}],
        },
        {
            "feedback_id": "f", "response_id": "r", "timestamp": START + 1, "kind": "rating", "item_id": "[b]",
            "score": 1,
        },
    ]  # fmt: skip
    events.write_text("\n".join(map(json.dumps, lines)) + "\n")
    bench.first_shard.client.flushall()
    assert ab_monitor("replay", "--config", config, str(events)).returncode == 0
    printed_table = ab_monitor("items", "shop", "--config", config, "--worst", "3")
    assert printed_table.returncode == 0
    assert "[b]" in printed_table.stdout
    assert "0 items were shown and not rated" in printed_table.stdout
    printed_json = json.loads(ab_monitor("items", "shop", "--config", config, "--attention", "3", "--json").stdout)
    assert [(entry["name"], entry["today"]) for entry in printed_json["first"]] == [("[b]", 1)]
    for wrong in (["--worst", "3"], [], ["shop", "--worst", "0"], ["shop", "--worst", "1", "--catalogue", "x"]):
        assert ab_monitor("items", *wrong, "--config", config).returncode == 2
