"""Items live: the counts are what a recomputation says, whatever the order; what is read from them; how they age."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.top_items import leaders
from monitor.analysis.triage import first_to_look_at
from monitor.app import asked_items
from monitor.config import ItemSettings
from monitor.errors import UsageError
from monitor.events import Feedback, Response
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.watermark import Progress
from monitor.state import Advance, Position
from monitor.state.item_reader import OTHERS_NAME, ItemReader
from monitor.state.recount import audit
from tests.integration.pipeline.test_exactness import _SLOW, Bench
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor
from tests.support.oracle import DAY, Judged, judge
from tests.support.streams import EXPERIMENT, HOUR, START, streams

GRADES = [0.0, 1.0, 2.0, 3.0, 4.0]


def _reader(bench: Bench) -> ItemReader:
    return bench.reader.items("ranker")


def _expected(judged: Sequence[Judged], catalogue: frozenset[str] | None = None) -> dict[str, dict[str, list[float]]]:
    """Return variant → item → [shown, ratings, good, Σ grade, Σ grade²]."""
    found: dict[str, dict[str, list[float]]] = {"control": {}, "treatment": {}}
    for each in judged:
        own = found[each.response.variant]

        def of(item: str, own: dict[str, list[float]] = own) -> list[float]:
            known = item if catalogue is None or item in catalogue else OTHERS_NAME
            return own.setdefault(known, [0, 0, 0, 0.0, 0.0])

        for item in each.response.items:
            of(item)[0] += 1
        for (_, item), grade in each.ratings.items():
            for at, more in enumerate((1, grade >= EXPERIMENT.relevant_grade, grade, grade * grade), 1):
                of(item)[at] += more
    return found


def _bad(judged: Sequence[Judged], by: str) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for each in judged:
        grades = each.ratings.values()
        if each.response.items and (not grades or max(grades) >= EXPERIMENT.relevant_grade):
            continue
        weight = 1 if each.review is None or each.review < 1 else 0 if each.review < 2 else int(each.review)
        category = each.response.category
        known = category if category in EXPERIMENT.categories else "other"
        for entry in each.response.items if by == "item" else [] if category is None else [known]:
            found[entry][each.response.timestamp_ms // DAY] += weight
    return found


def test_variants_are_told_before_their_first_response(redis_server: RedisServer) -> None:
    """They have shown nothing."""
    told = _reader(Bench(redis_server, replace(EXPERIMENT, items=ItemSettings(30)))).items(GRADES).to_json(5)
    nothing = {"items": 0, "coverage": None, "most_shown": asdict(leaders({}, 5))}
    assert told == {"variants": {"control": nothing, "treatment": nothing}, "worst": [], "unrated": 0}


@pytest.mark.parametrize(("one_in", "coverage"), [(1, 0.0), (2, None)])
def test_a_sample_of_a_catalogue_has_no_coverage(
    redis_server: RedisServer, one_in: int, coverage: float | None
) -> None:
    """Nobody counted the others."""
    items = ItemSettings(30, catalogue=frozenset({"video-1"}), one_in=one_in)
    told: Any = _reader(Bench(redis_server, replace(EXPERIMENT, items=items))).items(GRADES).to_json(5)
    assert told["variants"]["control"]["coverage"] == coverage


@settings(max_examples=25, suppress_health_check=_SLOW)
@given(events=streams(), shards=st.sampled_from([1, 3]), known=st.sampled_from([None, "video-1 video-2"]))
def test_counts_are_what_a_recomputation_says(
    events: Sequence[Response | Feedback], shards: int, known: str | None, redis_server: RedisServer
) -> None:
    """Items shown and rated by variant, and what to look at first by item and category."""
    catalogue = None if known is None else frozenset(known.split())
    experiment = replace(EXPERIMENT, items=ItemSettings(30, catalogue=catalogue, expected_items=20))
    bench = Bench(redis_server, experiment, shards=shards)
    bench.feed([events])
    judged = judge(EXPERIMENT, events)
    found = _reader(bench).items(GRADES)
    told = {
        variant: {name: [s.shown, s.ratings, s.good, s.total, s.squares] for name, s in own.items()}
        for variant, own in found.by_variant.items()
    }
    assert told == _expected(judged, catalogue)
    if judged and catalogue is None:
        today = max(each.response.timestamp_ms for each in judged) // DAY
        for by in ("item", "category"):
            expected = first_to_look_at(_bad(judged, by), today)
            assert _reader(bench).attention(by) == expected


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
    """Return the ratings that a worked example is about: of five stars, or good ones (4) and others (1)."""
    inputs = vector["inputs"]
    if vector["metric"] == "wilson_lower":
        return {4.0: inputs["pos"], 1.0: inputs["n"] - inputs["pos"]}
    return {float(star): count for star, count in enumerate(inputs["counts"], start=1)}


def test_the_literature_holds_through_the_store(shared: Path, redis_server: RedisServer) -> None:
    """Wilson's and the stars' bounds of every worked example, each an item; unrated is no score."""
    given_vectors = json.loads((shared / "vectors" / "seed_vectors.json").read_text("utf-8"))["vectors"]
    vectors = [each for each in given_vectors if each["metric"] in {"wilson_lower", "bayes_star_lower"}]
    bench = Bench(redis_server, replace(EXPERIMENT, max_grade=5, decay=(), items=ItemSettings(30)))
    events = [event for each in vectors for event in _rated(_counts_of(each), each["id"])]
    shown = [Response(f"{each['id']} unrated", START, "ranker", "control", (each["id"],)) for each in vectors]
    bench.feed([[*events, *shown]])
    found = _reader(bench).items([1.0, 2.0, 3.0, 4.0, 5.0])
    scores = {item: score for item, _, score in found.worst(100)}
    assert len(vectors) == 12
    for vector in vectors:
        if not sum(_counts_of(vector).values()):
            assert vector["id"] not in scores
            continue
        score = scores[vector["id"]]
        ours = score.good_lower if vector["metric"] == "wilson_lower" else score.mean_lower
        assert ours == pytest.approx(vector["expected"], rel=0, abs=1e-9), vector["id"]
    assert found.unrated() == 2


@pytest.fixture
def bench(redis_server: RedisServer) -> Bench:
    """Return a store with three rated items and one that nobody rated."""
    made = Bench(redis_server)
    unrated = Response("unrated", START, "ranker", "treatment", ("video-4",), category="geometry")
    reactions = [*_rated({4.0: 3}, "video-1"), *_rated({0.0: 2}, "video-2"), *_rated({2.0: 1}, "video-3")]
    made.feed([[*reactions, unrated]])
    return made


class TestReading:
    """What is asked for."""

    def test_the_worst_come_first_and_the_unrated_have_no_score(self, bench: Bench) -> None:
        """A lower bound decides; nobody's opinion is not a bad one."""
        told = asked_items(bench.reader, "ranker/items", {"n": "2"})
        assert [each["item"] for each in told["worst"]] == ["video-2", "video-3"]
        assert (told["unrated"], told["worst"][0]["mean"], told["worst"][0]["ratings"]) == (1, 0.0, 2)
        assert told["variants"]["control"]["most_shown"]["leaders"] == (("video-1", 3), ("video-2", 2))

    def test_what_to_look_at_first(self, bench: Bench) -> None:
        """The item with most bad answers; a review takes it out."""
        told = asked_items(bench.reader, "ranker/attention", {})
        assert [(each["name"], each["today"]) for each in told["first"]] == [("video-2", 2), ("video-3", 1)]
        reviews = [Feedback("x", f"video-2-{number}", START + 30 * HOUR, "reviewed", score=1.0) for number in range(2)]
        store = bench.writer()
        store.state()
        assert bench.submit(store, reviews, Advance("t:1", None, Position(2))).status.result() == "applied"
        told = asked_items(bench.reader, "ranker/attention", {})
        assert [each["name"] for each in told["first"]] == ["video-3"]

    def test_categories_are_in_the_summary(self, redis_server: RedisServer) -> None:
        """Two empty answers about geometry, one about something else."""
        bench = Bench(redis_server)
        asked = ["geometry", "geometry", "poetry", None]
        bench.feed([[Response(f"r{n}", START, "ranker", "control", (), category=name) for n, name in enumerate(asked)]])
        found = bench.reader.summary().experiments["ranker"].attention
        assert found is not None
        assert [(entry.name, entry.today) for entry in found] == [("geometry", 2), ("other", 1)]

    @pytest.mark.parametrize(
        ("path", "query"),
        [("ranker/items", {"n": "0"}), ("ranker/items", {"n": "-1"}), ("ranker/attention", {"by": "query"})],
    )
    def test_wrong_questions(self, bench: Bench, path: str, query: dict[str, str]) -> None:
        """One line that says what was expected."""
        with pytest.raises(UsageError, match="expected"):
            asked_items(bench.reader, path, query)
        with pytest.raises(KeyError):
            asked_items(bench.reader, "other/items", {})

    def test_where_items_are_not_counted(self, redis_server: RedisServer) -> None:
        """Nothing is stored of them, and the answer names the key."""
        bench = Bench(redis_server, replace(EXPERIMENT, items=None))
        bench.feed([_rated({4.0: 3})])
        names = [name for letter in "IJBDNM" for name in bench.store.client.scan_iter(f"abm:*:{letter}:*")]
        assert names == []
        with pytest.raises(UsageError, match=r"experiments\.ranker\.items"):
            asked_items(bench.reader, "ranker/items", {})


class TestAgeing:
    """The horizon slides."""

    def test_counts_and_names_behind_the_horizon_are_deleted(self, bench: Bench) -> None:
        """And what is still read is not."""
        later = START + 70 * DAY
        writer = bench.writer()
        writer.state()
        step = Advance("t:1", None, Position(1, later))
        late = Response("late", later, "ranker", "control", ("video-9",))
        assert bench.submit(writer, [late], step).status.result() == "applied"
        _, store = bench.worker()
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        progress.load(store.state())
        progress.see_ends({"t:0": 13, "t:1": 1})
        progress.advanced([Advance("t:0", 13, Position(13, later)), Advance("t:1", 1, Position(1, later))])
        Sweeper(store, [bench.experiment]).sweep(progress)
        left = {
            bytes(name).split(b":")[3] for name in store.client.scan_iter("abm:*") if b":I:" in name or b":N:" in name
        }
        assert left == {b"I", b"N"}
        for index in (store.keys.item_slices(1, 0), store.keys.item_eras(1), store.keys.bad_days(1)):
            assert store.client.zcard(index) == 1
        found = _reader(bench).items(GRADES)
        assert {name: set(own) for name, own in found.by_variant.items()} == {
            "control": {"video-9"},
            "treatment": set(),
        }

    def test_the_audit_names_what_is_wrong(self, bench: Bench) -> None:
        """A count that no row explains."""
        assert audit(bench.shards, bench.settings).differences == []
        name = next(bench.store.client.scan_iter("abm:*:I:1:0:*"))
        field = next(iter(bench.store.client.hgetall(name)))
        bench.store.client.hincrby(name, field, 1)
        (difference,) = audit(bench.shards, bench.settings).differences
        assert field[:-1].hex() in difference.what


def test_the_command_reads_the_store(bench: Bench, tmp_path: Path) -> None:
    """`items E --worst N`, `--attention N`, and what is refused."""
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
    bench.store.client.flushall()
    assert ab_monitor("replay", "--config", config, str(events)).returncode == 0
    shown = ab_monitor("items", "shop", "--config", config, "--worst", "3")
    assert shown.returncode == 0
    assert "[b]" in shown.stdout
    assert "0 items were shown and not rated" in shown.stdout
    told = json.loads(ab_monitor("items", "shop", "--config", config, "--attention", "3", "--json").stdout)
    assert [(each["name"], each["today"]) for each in told["first"]] == [("[b]", 1)]
    for wrong in (["--worst", "3"], [], ["shop", "--worst", "0"], ["shop", "--worst", "1", "--catalogue", "x"]):
        assert ab_monitor("items", *wrong, "--config", config).returncode == 2
