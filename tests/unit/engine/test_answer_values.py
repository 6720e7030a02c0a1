"""Known values of answer metrics: of a response and the reactions to it, and of a student with several responses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from msgspec import structs

from monitor.config import ExperimentSettings, MetricSpec
from monitor.engine import IdHasher
from monitor.engine.answer_values import AnswerValues
from monitor.engine.grading import GradingRules
from monitor.engine.response_row import (
    CAPPED_PREFIX,
    PRE_PERIOD_VARIANT,
    Contribution,
    ResponseRow,
    merge_reaction,
    reaction_from_feedback,
)
from monitor.events import Feedback
from monitor.metrics import FIXED_POINT_SCALE
from tests.support.streams import EXPERIMENT, HOUR, START

_IDS = IdHasher(b"key")
_STUDENT = "student-1"
_ITEMS = ("video-1", "video-2", "video-3")
_LIKED = MetricSpec("share:thumb_up", "share", kind="thumb_up")
_DISLIKED = MetricSpec("share:thumb_down", "share", kind="thumb_down")
_HIGH_SCORE = MetricSpec("share:csat>=4", "share", kind="csat", threshold=4)
_SATISFACTION = MetricSpec("score:csat", "score", kind="csat", least=1, most=5)
_WATCHED = MetricSpec("sum:watched_minutes", "sum", kind="watched_minutes", most=60)
_LATENCY = MetricSpec("latency_ms", "latency_ms", most=60_000, lower_is_better=True)
_SLOW = MetricSpec("latency_above_ms:500", "latency_above_ms", threshold=500, lower_is_better=True)
_ITEMS_SHOWN = MetricSpec("items_shown", "items_shown", most=2)
_EMPTY = MetricSpec("empty", "empty", lower_is_better=True)
_THUMBS = (("thumb_up", "thumb_down"),)


def _experiment(*metrics: MetricSpec, **settings: Any) -> ExperimentSettings:
    """Return an experiment with answer metrics only."""
    return replace(EXPERIMENT, metrics=metrics, primary=metrics[0].name, grades={}, **settings)


def _row(
    reactions: Sequence[Feedback] = (),
    items: Sequence[str] = _ITEMS,
    latency_ms: int = -1,
    variant_key: int = 0,
    timestamp_ms: int = START,
) -> ResponseRow:
    """Return the row of a response after reactions have been merged in the given order."""
    student_hash = _IDS.hash_student(_STUDENT)
    item_hashes = b"".join(map(_IDS.hash_item, items))
    row = ResponseRow(timestamp_ms, variant_key, student_hash, item_hashes, latency_ms=latency_ms)
    for feedback in reactions:
        merge_reaction(row, reaction_from_feedback(feedback, _IDS))
    return row


def _feedback(kind: str, at_ms: int = 0, score: float = 1.0, feedback_id: str = "", **fields: Any) -> Feedback:
    """Return a reaction of the student, a number of ms after the response; each has an id of its own by default."""
    fields = {"user_id": _STUDENT, "item_id": None, "is_withdrawn": False} | fields
    feedback_id = feedback_id or f"{kind}-{at_ms}-{score}-{fields['item_id']}-{fields['is_withdrawn']}"
    return Feedback(feedback_id, "r-1", START + at_ms, kind, score=score, **fields)


def _withdrawal(kind: str, at_ms: int, **fields: Any) -> Feedback:
    return _feedback(kind, at_ms, is_withdrawn=True, **fields)


def _values(experiment: ExperimentSettings, row: ResponseRow) -> dict[str, float | None]:
    """Return metric → value, None if it is undefined."""
    return _values_of(experiment, GradingRules(experiment).evaluate(row))


def _values_of(experiment: ExperimentSettings, contribution: Contribution) -> dict[str, float | None]:
    return {
        metric.name: None if value < 0 else round(metric.stored_unit * value / FIXED_POINT_SCALE, 4)
        for metric, value in zip(experiment.metrics, contribution.metric_values, strict=True)
    }


def _value(metric: MetricSpec, reactions: Sequence[Feedback], **settings: Any) -> float | None:
    """Return the value of a metric, which must be the same for every order of the reactions with repetitions."""
    experiment = _experiment(metric, **settings)
    values = set()
    for order in list(permutations(reactions))[:120]:
        repeated = [*order, *random.Random(1).sample(order, len(order))]
        values.add(_values(experiment, _row(repeated))[metric.name])
    (value,) = values
    return value


class TestShares:
    """A share is 1 if a current reaction of the kind exists, otherwise 0."""

    @pytest.mark.parametrize(
        ("reactions", "exclusive_shares", "separate_shares"),
        [
            ([], (0, 0), (0, 0)),
            ([_feedback("thumb_up")], (1, 0), (1, 0)),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1)], (0, 1), (1, 1)),
            ([_feedback("thumb_down"), _feedback("thumb_up", 1)], (1, 0), (1, 1)),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1), _feedback("thumb_up", 2)], (1, 0), (1, 1)),
            ([_feedback("thumb_up"), _withdrawal("thumb_up", 1)], (0, 0), (0, 0)),
            ([_feedback("thumb_up", 1), _withdrawal("thumb_up", 1)], (0, 0), (0, 0)),
            ([_feedback("thumb_up", 1), _withdrawal("thumb_up", 0)], (1, 0), (1, 0)),
            ([_feedback("thumb_up"), _withdrawal("thumb_down", 1)], (1, 0), (1, 0)),
            ([_feedback("thumb_up", 1), _withdrawal("thumb_down", 1)], (1, 0), (1, 0)),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1), _withdrawal("thumb_down", 2)], (0, 0), (1, 0)),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1), _withdrawal("thumb_up", 2)], (0, 1), (0, 1)),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1), _withdrawal("thumb_up", 1)], (0, 1), (0, 1)),
            ([_feedback("thumb_up"), _withdrawal("thumb_up", 1), _feedback("thumb_down", 2)], (0, 1), (0, 1)),
            ([_feedback("thumb_up"), _withdrawal("thumb_up", 1), _feedback("thumb_down", 1)], (0, 1), (0, 1)),
        ],
    )
    def test_exclusive_kinds_replace_each_other_and_other_kinds_count_side_by_side(
        self, reactions: list[Feedback], exclusive_shares: tuple[int, int], separate_shares: tuple[int, int]
    ) -> None:
        """A withdrawal withdraws reactions of its own kind up to its time; no earlier thumb comes back."""
        for groups, shares in ((_THUMBS, exclusive_shares), ((), separate_shares)):
            for metric, share in zip((_LIKED, _DISLIKED), shares, strict=True):
                assert _value(metric, reactions, exclusive_kinds=groups) == share

    def test_the_thumb_of_another_student_and_the_thumb_on_an_item_stay(self) -> None:
        """Exclusive kinds replace each other for the same student and the same item only."""
        for fields in ({"user_id": "student-2"}, {"item_id": "video-1"}):
            reactions = [_feedback("thumb_up"), structs.replace(_feedback("thumb_down", 1), **fields)]
            assert _value(_LIKED, reactions, exclusive_kinds=_THUMBS) == 1
            assert _value(_DISLIKED, reactions, exclusive_kinds=_THUMBS) == 1

    def test_feedback_without_a_student_is_of_the_student_of_the_response(self) -> None:
        """The thumb down has no user id."""
        reactions = [_feedback("thumb_up"), _feedback("thumb_down", 1, user_id=None)]
        assert _value(_LIKED, reactions, exclusive_kinds=_THUMBS) == 0

    @pytest.mark.parametrize(
        ("reactions", "share"),
        [
            ([], 0),
            ([_feedback("csat", score=4)], 1),
            ([_feedback("csat", score=3.9)], 0),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=2)], 0),
            ([_feedback("csat", score=2), _feedback("csat", 1, score=5)], 1),
            ([_feedback("csat", score=2), _feedback("csat", score=5, user_id="student-2")], 1),
            ([_feedback("other", score=5)], 0),
        ],
    )
    def test_a_share_with_a_threshold_needs_a_current_reaction_with_the_score(
        self, reactions: list[Feedback], share: int
    ) -> None:
        """A later lower score of the student replaces the higher one."""
        assert _value(_HIGH_SCORE, reactions) == share

    @pytest.mark.parametrize(
        ("at_ms", "variant_key", "share"),
        [
            (-5001, 0, 0),
            (-5000, 0, 1),
            (24 * HOUR, 0, 1),
            (24 * HOUR + 1, 0, 0),
            (HOUR - 1, PRE_PERIOD_VARIANT, 1),
            (HOUR, PRE_PERIOD_VARIANT, 0),
        ],
    )
    def test_reactions_outside_the_feedback_window_do_not_count(self, at_ms: int, variant_key: int, share: int) -> None:
        """The window of a response of the pre-period ends with the start of the experiment, an hour later."""
        experiment = _experiment(_LIKED, starts_at_ms=START + HOUR, pre_period_ms=24 * HOUR)
        row = _row([_feedback("thumb_up", at_ms)], variant_key=variant_key)
        assert _values(experiment, row) == {"share:thumb_up": share}


class TestScores:
    """A score is that of the latest current reaction of the kind, if it is in the declared range."""

    @pytest.mark.parametrize(
        ("reactions", "score"),
        [
            ([], None),
            ([_feedback("csat", score=5)], 5),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=2)], 2),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=2, user_id="student-2")], 2),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=2, item_id="video-1")], 2),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=5.5)], 5),
            ([_feedback("csat", score=5), _feedback("csat", 1, score=0.5)], 5),
            ([_feedback("csat", score=0)], None),
            ([_feedback("csat", score=5), _withdrawal("csat", 1)], None),
            ([_feedback("csat", score=5), _withdrawal("csat", 1), _feedback("csat", 2, score=3)], 3),
            ([_feedback("other", score=3)], None),
        ],
    )
    def test_the_latest_score_in_the_range_counts(self, reactions: list[Feedback], score: float | None) -> None:
        """Without a score, a response has no value, or that of silence."""
        assert _value(_SATISFACTION, reactions) == score
        with_silence = replace(_SATISFACTION, silence=1)
        assert _value(with_silence, reactions) == (1 if score is None else score)

    @pytest.mark.parametrize(("score", "reason"), [(0.5, "off_scale"), (5.5, "off_scale"), (5, None)])
    def test_a_score_outside_the_range_is_counted_as_such(self, score: float, reason: str | None) -> None:
        """It is not capped."""
        contribution = GradingRules(_experiment(_SATISFACTION)).evaluate(_row([_feedback("csat", score=score)]))
        assert contribution.uncounted_reactions == (() if reason is None else ((reason, 1),))
        assert contribution.is_rated == (reason is None)

    @pytest.mark.parametrize(("score", "value"), [(0.5, None), (1, 1), (2, None), (3, 3), (4, None)])
    def test_a_score_that_is_also_a_grade_has_to_be_on_both_scales(self, score: float, value: float | None) -> None:
        """The range is 1 to 5, the largest grade 3, and the grade 2 has no gain."""
        experiment = replace(
            _experiment(_SATISFACTION), grades={"csat": "score"}, max_grade=3.0, gain={0.0: 0.0, 1.0: 1.0, 3.0: 7.0}
        )
        assert _values(experiment, _row([_feedback("csat", score=score)])) == {"score:csat": value}


class TestSums:
    """A sum adds the scores of the current reactions of the kind, over items and students, up to the range's end."""

    @pytest.mark.parametrize(
        ("reactions", "latest_sum", "additive_sum"),
        [
            ([], 0, 0),
            ([_feedback("watched_minutes", score=4)], 4, 4),
            ([_feedback("watched_minutes", score=4), _feedback("watched_minutes", 1, score=2)], 2, 6),
            (
                [
                    _feedback("watched_minutes", score=4, item_id="video-1"),
                    _feedback("watched_minutes", 1, score=2, item_id="video-2"),
                    _feedback("watched_minutes", 2, score=1, user_id="student-2"),
                ],
                7,
                7,
            ),
            (
                [
                    _feedback("watched_minutes", score=4, feedback_id="f"),
                    _feedback("watched_minutes", 1, score=2, feedback_id="f"),
                ],
                2,
                2,
            ),
            (
                [
                    _feedback("watched_minutes", score=4),
                    _feedback("watched_minutes", 1, score=2),
                    _withdrawal("watched_minutes", 1),
                    _feedback("watched_minutes", 2, score=8),
                    _feedback("watched_minutes", 3, score=16),
                ],
                16,
                24,
            ),
            (
                [
                    _feedback("watched_minutes", score=4, item_id="video-1"),
                    _feedback("watched_minutes", score=2, item_id="video-2"),
                    _withdrawal("watched_minutes", 1, item_id="video-1"),
                ],
                2,
                2,
            ),
            ([_withdrawal("watched_minutes", 1)], 0, 0),
            ([_feedback("watched_minutes", score=60)], 60, 60),
            ([_feedback("watched_minutes", score=61)], 60, 60),
            ([_feedback("watched_minutes", score=1.7e308)], 60, 60),
            (
                [
                    _feedback("watched_minutes", score=1.7e308, item_id="video-1"),
                    _feedback("watched_minutes", score=1.7e308, item_id="video-2"),
                ],
                60,
                60,
            ),
        ],
    )
    def test_additive_reactions_add_up_and_other_reactions_replace_the_earlier_one(
        self, reactions: list[Feedback], latest_sum: float, additive_sum: float
    ) -> None:
        """The same feedback id counts once; a withdrawal withdraws all earlier reactions to the item."""
        assert _value(_WATCHED, reactions) == latest_sum
        assert _value(_WATCHED, reactions, additive_kinds=("watched_minutes",)) == additive_sum

    @pytest.mark.parametrize(("minutes", "total", "capped"), [(29, 59, 0), (30, 60, 0), (31, 60, 1)])
    def test_a_capped_sum_is_counted(self, minutes: float, total: float, capped: int) -> None:
        """The cap is 60 minutes; no item alone is above it."""
        experiment = _experiment(_WATCHED)
        items = [
            _feedback("watched_minutes", score=30, item_id="video-1"),
            _feedback("watched_minutes", score=minutes, item_id="video-2"),
        ]
        contribution = GradingRules(experiment).evaluate(_row(items))
        assert _values_of(experiment, contribution) == {"sum:watched_minutes": total}
        assert dict(contribution.uncounted_reactions).get(f"{CAPPED_PREFIX}sum:watched_minutes", 0) == capped


class TestValuesOfTheResponse:
    """Latency, number of items and emptiness follow from the response event alone."""

    @pytest.mark.parametrize(
        ("latency_ms", "latency", "slow", "capped"),
        [(-1, None, None, 0), (0, 0, 0, 0), (500, 500, 0, 0), (501, 501, 1, 0), (60_001, 60_000, 1, 1)],
    )
    def test_a_missing_latency_is_undefined_and_a_long_one_capped(
        self, latency_ms: int, latency: float | None, slow: float | None, capped: int
    ) -> None:
        """A latency at the threshold is not above it."""
        experiment = _experiment(_LATENCY, _SLOW)
        contribution = GradingRules(experiment).evaluate(_row(latency_ms=latency_ms))
        assert _values_of(experiment, contribution) == {"latency_ms": latency, "latency_above_ms:500": slow}
        assert dict(contribution.uncounted_reactions).get(f"{CAPPED_PREFIX}latency_ms", 0) == capped
        assert not contribution.is_rated

    @pytest.mark.parametrize(
        ("item_count", "shown", "empty", "capped"), [(0, 0, 1, 0), (1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 0, 1)]
    )
    def test_a_response_without_items_is_empty(self, item_count: int, shown: int, empty: int, capped: int) -> None:
        """The range of `items_shown` ends at 2."""
        experiment = _experiment(_ITEMS_SHOWN, _EMPTY)
        contribution = GradingRules(experiment).evaluate(_row(items=_ITEMS[:item_count]))
        assert _values_of(experiment, contribution) == {"items_shown": shown, "empty": empty}
        assert dict(contribution.uncounted_reactions).get(f"{CAPPED_PREFIX}items_shown", 0) == capped


class TestRatedResponses:
    """Without ranking metrics, a response is rated by a current reaction on which the metrics depend."""

    @pytest.mark.parametrize(
        ("reactions", "is_rated"),
        [
            ([], False),
            ([_feedback("thumb_up")], True),
            ([_feedback("thumb_up"), _withdrawal("thumb_up", 1)], False),
            ([_feedback("thumb_down")], True),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1)], True),
            ([_feedback("thumb_up"), _feedback("thumb_down", 1), _withdrawal("thumb_down", 2)], False),
            ([_feedback("other")], False),
        ],
    )
    def test_a_response_is_rated_by_the_kind_of_a_metric_and_kinds_that_replace_it(
        self,
        reactions: list[Feedback],
        is_rated: bool,  # noqa: FBT001
    ) -> None:
        """The metric needs the kind thumb_up; a thumb down is an opinion, too, so it is not silence."""
        rules = GradingRules(_experiment(_LIKED, exclusive_kinds=_THUMBS))
        assert rules.evaluate(_row(reactions)).is_rated == is_rated

    def test_with_ranking_metrics_only_a_graded_item_makes_a_response_rated(self) -> None:
        """The values of answer metrics do not depend on it."""
        experiment = replace(EXPERIMENT, metrics=(*EXPERIMENT.metrics, _LIKED))
        for reactions, is_rated in (
            ([_feedback("thumb_up")], False),
            ([_feedback("thumb_up"), _feedback("rating", score=3, item_id="video-2")], True),
        ):
            contribution = GradingRules(experiment).evaluate(_row(reactions))
            assert contribution.is_rated == is_rated
            assert _values_of(experiment, contribution)["share:thumb_up"] == 1


def test_millions_of_slow_responses_of_one_student_fit_64_bits() -> None:
    """Latencies are stored in units of 1024 ms: ten million at the largest cap do not stop a worker."""
    metric = MetricSpec("latency_ms", "latency_ms", most=600_000)
    experiment = ExperimentSettings("tutor", "a", {"a": 0.5, "b": 0.5}, metrics=(metric,), primary="latency_ms")
    row = ResponseRow(0, 256, latency_ms=700_000)
    ((value,), capped) = AnswerValues(experiment).compute(row, [])
    assert capped == ["latency_ms"]
    assert value * 10_000_000 < 2**63
