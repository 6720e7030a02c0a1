"""The keys of an experiment that define its metrics: accepted values, and one line for each wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import ExperimentSettings, MetricSpec, load_settings
from monitor.errors import ConfigError

_EXPERIMENT = """
[[experiments]]
name = "tutor"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""
_SCORE = 'metrics = ["score:csat"]\n'
_CSAT = _SCORE + 'ranges = { "score:csat" = [1, 5] }\n'
_LIKED = 'metrics = ["share:up"]\n'
_LONG_KIND = "k" * 65
_NO_SETTING = "only metrics of the experiment that have such a setting; it has none"
_KIND_LIST = "a list of kinds of 1 to 64 printable characters, the first not +"


def _guardrail(metric: str) -> str:
    return f'{{ metric = "{metric}", harmful_direction = "up", margin = 0.1 }}'


def _load(tmp_path: Path, lines: str) -> ExperimentSettings:
    path = tmp_path / "config.toml"
    path.write_text(f"{_EXPERIMENT}{lines}\n")
    (experiment,) = load_settings(path, {}).experiments
    return experiment


@pytest.mark.parametrize(
    ("lines", "key", "value", "expectation"),
    [
        ('metrics = ["share:"]', "metrics", '"share:"', "share:KIND, with a kind of 1 to 64 printable characters"),
        ('metrics = ["score:"]', "metrics", '"score:"', "score:KIND, with a kind of 1 to 64 printable characters"),
        (
            'metrics = ["sum:+x"]',
            "metrics",
            '"sum:+x"',
            "printable characters, the first not +",
        ),
        (
            f'metrics = ["share:{_LONG_KIND}"]',
            "metrics",
            f'"share:{_LONG_KIND}"',
            "a kind of 1 to 64 printable characters",
        ),
        ('metrics = ["share:>=3"]', "metrics", '"share:>=3"', "share:KIND, with a kind"),
        ('metrics = ["share:x>=abc"]', "metrics", '"share:x>=abc"', "share:KIND>=T, with a number T from 0 to 99999"),
        ('metrics = ["share:x>="]', "metrics", '"share:x>="', "share:KIND>=T, with a number T"),
        ('metrics = ["share:x>=-1"]', "metrics", '"share:x>=-1"', "share:KIND>=T, with a number T"),
        (
            'metrics = ["latency_above_ms:0"]',
            "metrics",
            '"latency_above_ms:0"',
            "whole milliseconds from 1 to 86400000",
        ),
        ('metrics = ["latency_above_ms:1s"]', "metrics", '"latency_above_ms:1s"', "whole milliseconds from 1"),
        ('metrics = ["empty", "empty"]', "metrics", '["empty", "empty"]', "every metric once"),
        ('metrics = ["items_shown:3"]', "metrics", '"items_shown:3"', "one of cg@k, "),
        ('metrics = ["shar:up"]', "metrics", '"shar:up"', "did you mean share:up?"),
        ('metrics = ["feedback:up"]', "metrics", '"feedback:up"', "did you mean share:up?"),
        ('metrics = ["latency"]', "metrics", '"latency"', "did you mean latency_ms?"),
        ('metrics = ["item_shown"]', "metrics", '"item_shown"', "did you mean items_shown?"),
        ('metrics = ["retrun_days"]', "metrics", '"retrun_days"', "did you mean return_days?"),
        ('metrics = ["per_studnt:empty"]', "metrics", '"per_studnt:empty"', "did you mean per_student:empty?"),
        ('metrics = ["dgc@5"]', "metrics", '"dgc@5"', "did you mean dcg@5?"),
        ('metrics = ["share:csat>4"]', "metrics", '"share:csat>4"', "did you mean share:csat>=4?"),
        ('metrics = ["share:a\\n"]', "metrics", '"share:a\\n"', "printable characters"),
        (
            'metrics = ["empty", "return_days"]\nexposure_days = 1',
            "metrics",
            '"return_days"',
            "so that students can return",
        ),
        (
            'metrics = ["empty", "per_student:share:up"]',
            "metrics",
            '"per_student:share:up"',
            "the metrics empty",
        ),
        (
            f"{_LIKED}guardrails = [{_guardrail('feedback:bad')}, {_guardrail('share:bad')}]",
            "guardrails[1].metric",
            '"share:bad"',
            "every metric once",
        ),
        ("metrics = [3]", "metrics", "3", "one of cg@k, "),
        (f'{_LIKED}primary = "share:pu"', "primary", '"share:pu"', "one of share:up; did you mean share:up?"),
        (f"{_LIKED}mde = 2", "mde", "2", "a number from 1e-06 to 1"),
        (f"{_SCORE}ranges = [1, 5]", "ranges", "[1, 5]", "a table with metrics as keys"),
        (f'{_SCORE}ranges = {{ "score:csta" = [1, 5] }}', "ranges", '"score:csta"', "did you mean score:csat?"),
        (f'{_SCORE}ranges = {{ "score:csat" = 5 }}', "ranges.score:csat", "5", "[least, most], such as [1, 5]"),
        (f'{_SCORE}ranges = {{ "score:csat" = [1] }}', "ranges.score:csat", "[1]", "[least, most]"),
        (f'{_SCORE}ranges = {{ "score:csat" = [1, "x"] }}', "ranges.score:csat", '[1, "x"]', "[least, most]"),
        (f'{_SCORE}ranges = {{ "score:csat" = [1, true] }}', "ranges.score:csat", "[1, true]", "[least, most]"),
        (f'{_SCORE}ranges = {{ "score:csat" = [1, nan] }}', "ranges.score:csat", "[1, nan]", "[least, most]"),
        (f'{_SCORE}ranges = {{ "score:csat" = [5, 5] }}', "ranges.score:csat", "[5, 5]", "0 <= least < most <= 65536"),
        (f'{_SCORE}ranges = {{ "score:csat" = [-1, 5] }}', "ranges.score:csat", "[-1, 5]", "0 <= least < most"),
        (f'{_SCORE}ranges = {{ "score:csat" = [1, 1e6] }}', "ranges.score:csat", "[1, 1000000.0]", "most <= 65536"),
        (
            'metrics = ["sum:minutes"]\nranges = { "sum:minutes" = [1, 60] }',
            "ranges.sum:minutes",
            "[1, 60]",
            "0 as the least value",
        ),
        (
            'metrics = ["latency_ms"]\nranges = { latency_ms = [0, 600001] }',
            "ranges.latency_ms",
            "[0, 600001]",
            "0 <= least < most <= 600000",
        ),
        (f'{_LIKED}ranges = {{ "share:up" = [0, 1] }}', "ranges", '"share:up"', _NO_SETTING),
        (f"{_CSAT}silence = 1", "silence", "1", "a table with metrics as keys"),
        (f'{_CSAT}silence = {{ "score:csat" = 0 }}', "silence.score:csat", "0", "a number from 1 to 5"),
        (f'{_CSAT}silence = {{ "score:csat" = "x" }}', "silence.score:csat", '"x"', "a number from 1 to 5"),
        (f'{_CSAT}silence = {{ "score:csta" = 1 }}', "silence", '"score:csta"', "did you mean score:csat?"),
        (f'{_LIKED}silence = {{ "share:up" = 1 }}', "silence", '"share:up"', _NO_SETTING),
        (f'{_LIKED}lower_is_better = "share:up"', "lower_is_better", '"share:up"', "a list of answer metrics"),
        (f'{_LIKED}lower_is_better = ["share:pu"]', "lower_is_better", '"share:pu"', "did you mean share:up?"),
        (f"{_LIKED}lower_is_better = [3]", "lower_is_better", "3", "one of share:up"),
        (
            f'{_LIKED}lower_is_better = ["share:up", "share:up"]',
            "lower_is_better",
            '["share:up", "share:up"]',
            "every metric once",
        ),
        ('metrics = ["dcg@5"]\nlower_is_better = ["dcg@5"]', "lower_is_better", '"dcg@5"', _NO_SETTING),
        (f'{_LIKED}exclusive_kinds = "up"', "exclusive_kinds", '"up"', 'such as [["thumb_up", "thumb_down"]]'),
        (f'{_LIKED}exclusive_kinds = ["up", "down"]', "exclusive_kinds", '["up", "down"]', "a list of groups of kinds"),
        (f'{_LIKED}exclusive_kinds = [["up"]]', "exclusive_kinds", '[["up"]]', "a list of groups of kinds"),
        (f'{_LIKED}exclusive_kinds = [["up", "up"]]', "exclusive_kinds", '["up", "up"]', "every kind once"),
        (
            f'{_LIKED}exclusive_kinds = [["up", "down"], ["up", "meh"]]',
            "exclusive_kinds",
            '[["up", "down"], ["up", "meh"]]',
            "every kind once",
        ),
        (f'{_LIKED}exclusive_kinds = [["up", 3]]', "exclusive_kinds", '["up", 3]', _KIND_LIST),
        (f'{_LIKED}exclusive_kinds = [["up", "+down"]]', "exclusive_kinds", '["up", "+down"]', _KIND_LIST),
        (f'{_LIKED}additive_kinds = "up"', "additive_kinds", '"up"', _KIND_LIST),
        (f'{_LIKED}additive_kinds = [""]', "additive_kinds", '[""]', _KIND_LIST),
        (f'{_LIKED}additive_kinds = ["up", "up"]', "additive_kinds", '["up", "up"]', "every kind once"),
        (
            f'{_LIKED}exclusive_kinds = [["up", "down"]]\nadditive_kinds = ["up"]',
            "additive_kinds",
            '["up"]',
            "no kind of exclusive_kinds, such as up",
        ),
        ('metrics = ["dcg@5"]\ngrades = {}', "grades", "{}", "a table of kinds of feedback and their grades"),
    ],
)
def test_a_wrong_value_gives_one_line_with_key_value_and_expectation(
    tmp_path: Path, lines: str, key: str, value: str, expectation: str
) -> None:
    """The line has the number of the line in the file, too."""
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, lines)
    message = str(caught.value)
    assert message.startswith(f"experiments.tutor.{key}: got {value}, expected ")
    assert expectation in message
    assert "\n" not in message
    assert "of the file" in message


@pytest.mark.parametrize(
    "lines", ["", '[[experiments.guardrails]]\nharmful_direction = "down"\nmargin = 0.1\nmetric = ']
)
@pytest.mark.parametrize("metric", ["score:csat", "sum:minutes"])
def test_a_score_or_a_sum_without_a_range_is_rejected(tmp_path: Path, metric: str, lines: str) -> None:
    """Also if only a guardrail names the metric."""
    lines = f'{_LIKED}{lines}"{metric}"' if lines else f'metrics = ["{metric}"]'
    with pytest.raises(ConfigError, match=r"experiments\.tutor\.ranges: missing, expected a range of ") as caught:
        _load(tmp_path, lines)
    assert f'such as {{ "{metric}" = [0, 5] }}' in str(caught.value)


@pytest.mark.parametrize("metric", ["share:up", "empty", "latency_ms"])
def test_a_guardrail_against_a_gain_is_rejected(tmp_path: Path, metric: str) -> None:
    """Less of the metric is better, so a fall is no harm."""
    lower_is_better = 'lower_is_better = ["share:up"]\n'
    guardrail = f'[[experiments.guardrails]]\nmetric = "{metric}"\nmargin = 0.1\nharmful_direction = "down"'
    with pytest.raises(ConfigError, match=f"expected up, because a fall of {metric} harms nobody"):
        _load(tmp_path, _LIKED + lower_is_better + guardrail)


@pytest.mark.parametrize("grades", ["", "grades = {}\n"])
def test_an_experiment_without_ranking_metrics_needs_no_grades(tmp_path: Path, grades: str) -> None:
    """The first metric is then the primary metric."""
    experiment = _load(tmp_path, f'metrics = ["share:up", "latency_ms"]\n{grades}')
    assert (experiment.primary, experiment.grades) == ("share:up", {})
    assert experiment.ranking_metrics == ()


def test_metrics_have_ranges_silence_and_a_direction(tmp_path: Path) -> None:
    """Ranking metrics come first, and metrics that only guardrails name come last."""
    experiment = _load(
        tmp_path,
        """
        metrics = ["score:csat", "dcg@5", "sum:minutes", "latency_ms", "items_shown", "share:csat>=4"]
        ranges = { "score:csat" = [1, 5], "sum:minutes" = [0, 60], latency_ms = [0, 10_000] }
        silence = { "score:csat" = 1 }
        lower_is_better = ["items_shown"]
        additive_kinds = ["minutes"]
        exclusive_kinds = [["up", "down"]]
        [[experiments.guardrails]]
        metric = "share:escalated"
        harmful_direction = "up"
        margin = 0.1
        """,
    )
    assert experiment.metrics == (
        MetricSpec("dcg@5", "dcg", 5),
        MetricSpec("score:csat", "score", kind="csat", least=1, most=5, silence=1),
        MetricSpec("sum:minutes", "sum", kind="minutes", most=60),
        MetricSpec("latency_ms", "latency_ms", most=10_000, lower_is_better=True),
        MetricSpec("items_shown", "items_shown", most=100, lower_is_better=True),
        MetricSpec("share:csat>=4", "share", kind="csat", threshold=4),
        MetricSpec("share:escalated", "share", kind="escalated", lower_is_better=True, is_guardrail_only=True),
    )
    assert experiment.exclusive_kinds == (("up", "down"),)
    assert experiment.additive_kinds == ("minutes",)


def test_kinds_that_replace_the_kind_of_a_metric_are_feedback_of_the_experiment(tmp_path: Path) -> None:
    """Other groups are not."""
    experiment = _load(tmp_path, _LIKED + 'exclusive_kinds = [["up", "down"], ["happy", "sad"]]')
    assert experiment.feedback_kinds == {"up", "down"}


@pytest.mark.parametrize(("lines", "guarded"), [(_LIKED, []), (_CSAT, ["rated_share"]), ("", ["rated_share"])])
def test_the_share_of_rated_responses_is_guarded_only_where_silence_has_no_value(
    tmp_path: Path, lines: str, guarded: list[str]
) -> None:
    """Otherwise fewer thumbs down, an improvement, would stop an experiment on thumbs up."""
    assert [guardrail.metric for guardrail in _load(tmp_path, lines).decision.guardrails] == guarded


@pytest.mark.parametrize(
    ("lines", "expectation"),
    [
        (f'{_SCORE}ranges = {{ "score:csat" = [1, {10**400}] }}', "ranges.score:csat: .* <= 65536"),
        (f'{_CSAT}lower_is_better = ["score:csat"]', "silence: .* the lowest score is the best one"),
    ],
)
def test_values_that_could_mislead_are_rejected(tmp_path: Path, lines: str, expectation: str) -> None:
    """A number too large for a float, and silence that would count as the best score."""
    with pytest.raises(ConfigError, match=expectation):
        _load(tmp_path, lines)
