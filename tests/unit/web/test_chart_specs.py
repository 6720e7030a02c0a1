"""Specifications of charts: valid under the schema of Vega-Lite, gaps, units, ranges, time zones, descriptions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from monitor.clock import DAY_MS, HOUR_MS
from monitor.web.chart_specs import (
    PER_CENT,
    ChartSpec,
    EventMark,
    ForestRow,
    GuardrailBar,
    Line,
    Point,
    ReferenceLine,
    ValueRow,
    forest_plot_spec,
    guardrail_bars_spec,
    interval_bar_spec,
    prepare_charts,
    time_chart_spec,
    value_bars_spec,
)
from monitor.web.pages import TEMPLATE_ENVIRONMENT

START_MS = 1_793_491_200_000  # Sunday, 1 November 2026


@cache
def _schema_validator() -> Draft7Validator:
    return Draft7Validator(alt.load_schema())


def _schema_errors(spec: ChartSpec) -> list[str]:
    """Return the violations of the schema of Vega-Lite, of which Altair has a copy."""
    return [error.message[:300] for error in _schema_validator().iter_errors(json.loads(json.dumps(spec)))]


def _line(*values: float | None, half_width: float | None = None, label: str = "effect") -> Line:
    """Return a line with a point per day, and bounds at a distance of `half_width` from the values."""
    points = []
    for day, value in enumerate(values):
        has_bounds = half_width is not None and value is not None
        bounds = (value - half_width, value + half_width) if has_bounds else (None, None)  # type: ignore[operator]
        points.append(Point(START_MS + day * DAY_MS, value, *bounds))
    return Line(label, points)


def _drawn(spec: ChartSpec | None) -> ChartSpec:
    assert spec is not None
    return spec


def _parameters(spec: ChartSpec) -> dict[str, Any]:
    return {parameter["name"]: parameter["value"] for parameter in spec["params"] if "value" in parameter}


def _texts(node: object) -> list[str]:
    """Return all strings of a specification."""
    if isinstance(node, dict):
        return [text for part in node.values() for text in _texts(part)]
    if isinstance(node, list):
        return [text for part in node for text in _texts(part)]
    return [node] if isinstance(node, str) else []


GUARDRAILS = [
    GuardrailBar("escalated", 0.002, 0.015, 0.009, 0.01, "open", "still open", "+0.2 to +1.5 percentage points"),
    GuardrailBar("latency", 60.0, 900.0, None, 50.0, "bad", "failed", "+60 to +900 ms"),
]
EVERY_KIND = {
    "effect": time_chart_spec(
        "effect",
        [
            _line(None, 0.1, 0.2, None, 0.3, half_width=0.5),
            Line("all", _line(0.1, None).points, 0, "dotted", band=False),
        ],
        reference_lines=[ReferenceLine(0.0), ReferenceLine(-0.1, "allowed loss", is_limit=True)],
        events=[EventMark(START_MS + DAY_MS, "share change"), EventMark(START_MS + 2 * DAY_MS, "drop")],
        unit="percentage points",
        scale=PER_CENT,
        signed=True,
        zone="Europe/Berlin",
    ),
    "one point": time_chart_spec("one point", [_line(0.1, half_width=0.05)]),
    "one point without bounds": time_chart_spec("one point", [_line(0.0)], reference_lines=[ReferenceLine(0.0)]),
    "many points": time_chart_spec("many", [_line(*range(400)), _line(*range(400), label="other")], unit="ms"),
    "forest plot": forest_plot_spec(
        "subgroups",
        [
            ForestRow("a", 0.1, 0.0, 0.2, highlighted=True),
            ForestRow("b", None, None, None),
            ForestRow("c", 1, None, None),
        ],
        unit="percentage points",
        scale=PER_CENT,
    ),
    "guardrails": guardrail_bars_spec("guardrails", GUARDRAILS),
    "interval": interval_bar_spec("effect", (0.16, 0.07, 0.25), (-0.3, 0.4), "good"),
    "values": value_bars_spec(
        "by query",
        [ValueRow("q1", [0.2, None], [[0.1, 0.3], []]), ValueRow("q2", [0.4, 0.6], [[], []])],
        ["old", "new"],
        value_title="ndcg@5",
        row_title="query",
    ),
    "values without circles": value_bars_spec(
        "by query", [ValueRow("q1", [0.0], [[]])], ["old"], value_title="ndcg@5", row_title="query"
    ),
}


class TestSpecification:
    """What all charts have in common."""

    @pytest.mark.parametrize("kind", EVERY_KIND)
    def test_every_kind_of_chart_is_valid_vega_lite(self, kind: str) -> None:
        """With missing values, and with one point; Altair's own validation is off in the service."""
        assert _schema_errors(_drawn(EVERY_KIND[kind])) == []

    def test_the_schema_rejects_a_misspelt_property(self) -> None:
        """Otherwise the test above would prove nothing."""
        spec = _drawn(EVERY_KIND["interval"])
        layers = [{**layer, "mark": {**layer["mark"], "opacty": 1}} for layer in spec["layer"]]
        assert _schema_errors({**spec, "layer": layers}) != []

    def test_a_specification_is_small_and_loads_nothing(self) -> None:
        """Without the theme and the schema's address, which Altair adds; colours are variables of the page."""
        for spec in EVERY_KIND.values():
            text = json.dumps(_drawn(spec))
            assert "http" not in text
            assert "#" not in text
            assert len(text) - len(json.dumps(spec["datasets"])) < 8_500  # type: ignore[index]

    def test_charts_of_one_shape_do_not_share_their_data(self) -> None:
        """The cached part of a specification never changes."""
        first, second = (_drawn(time_chart_spec("same", [_line(value, half_width=1)])) for value in (1.0, 2.0))
        assert [spec["datasets"]["rows"][0]["v"] for spec in (first, second)] == [1, 2]
        assert _parameters(first)["high"] < _parameters(second)["high"]

    def test_a_title_gives_the_name_of_downloaded_files(self) -> None:
        """Any name of an experiment is a file name."""
        spec = _drawn(time_chart_spec("Effect of ../B on nDCG@5", [_line(1.0)]))
        assert spec["usermeta"]["file"] == "effect-of-b-on-ndcg-5"

    def test_the_macro_escapes_markup_in_names(self) -> None:
        """A name ends neither the data block nor the sentence."""
        name = '</script><img src=x onerror="1">'
        spec = time_chart_spec(name, [_line(1.0, label=name)])
        template = TEMPLATE_ENVIRONMENT.from_string('{% from "charts.html" import chart %}{{ chart(spec) }}')
        page = template.render(spec=spec)
        assert "<img" not in page
        assert page.count("</script>") == 1
        block = page.partition('<script type="application/json">')[2].partition("</script>")[0]
        assert json.loads(block) == json.loads(json.dumps(spec))

    def test_without_a_chart_the_macro_writes_the_placeholder(self) -> None:
        """A sentence instead of a figure."""
        template = TEMPLATE_ENVIRONMENT.from_string(
            '{% from "charts.html" import chart %}{{ chart(none, "Not yet.") }}'
        )
        assert template.render() == '<p class="soft">Not yet.</p>'


class TestPreparation:
    """Altair needs up to a second before the first chart."""

    def test_charts_after_the_preparation_do_not_call_altair(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither for other names, units and zones."""
        prepare_charts()
        monkeypatch.setitem(sys.modules, "altair", None)
        line = _line(0.1, 0.2, half_width=1.0, label="a name that no other test has")
        assert time_chart_spec("new", [line], unit="%", signed=True, zone="Asia/Tokyo") is not None
        assert forest_plot_spec("new", [ForestRow("a", 1.0, 0.0, 2.0)]) is not None
        assert guardrail_bars_spec("new", GUARDRAILS) is not None
        assert interval_bar_spec("new", (0.1, 0.0, 0.2), (-1.0, 1.0), "open") is not None


class TestTimeChart:
    """Lines over time."""

    def test_missing_values_are_gaps_in_lines_and_bands(self) -> None:
        """Bands before and after a gap have different numbers; a band of a single point is marked."""
        rows = _drawn(time_chart_spec("gaps", [_line(1.0, 2.0, None, 4.0, half_width=0.5)]))["datasets"]["rows"]
        assert [row["v"] for row in rows] == [1, 2, None, 4]
        assert [row.get("g") for row in rows] == [0, 0, None, 2]
        assert [row.get("o", False) for row in rows] == [False, False, False, True]

    def test_without_values_there_is_no_chart(self) -> None:
        """Neither without lines nor with lines of missing values."""
        assert time_chart_spec("empty", []) is None
        assert time_chart_spec("empty", [_line(None, None)], reference_lines=[ReferenceLine(0.0)]) is None

    def test_wide_bands_at_the_start_do_not_widen_the_value_axis(self) -> None:
        """Later bounds, values and reference lines are within the axis."""
        points = [
            Point(START_MS + day * DAY_MS, 0.3, 0.3 - 50 / (day + 1) ** 3, 0.3 + 50 / (day + 1) ** 3)
            for day in range(12)
        ]
        spec = _drawn(time_chart_spec("wide", [Line("effect", points)], reference_lines=[ReferenceLine(-2.0, "far")]))
        parameters = _parameters(spec)
        assert -3 < parameters["low"] < -2

    def test_early_bounds_below_0_are_seen_though_the_axis_does_not_follow_them(self) -> None:
        """Cut at 0, the uncertain beginning would look as if no loss were possible."""
        points = [
            Point(START_MS + number * DAY_MS, 1.0, 1.0 - width, 1.0 + width)
            for number, width in enumerate((9.0, *[0.5] * 9))
        ]
        parameters = _parameters(
            _drawn(time_chart_spec("effect", [Line("effect", points)], reference_lines=[ReferenceLine(0.0)]))
        )
        assert -1 < parameters["low"] < 0
        assert 1 < parameters["high"] < 3

    @given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), half_width=st.floats(0, 1e9))
    def test_the_axis_contains_all_values(self, values: list[float], half_width: float) -> None:
        """For a single value and equal values, too."""
        parameters = _parameters(_drawn(time_chart_spec("any", [_line(*values, half_width=half_width)])))
        assert parameters["low"] < parameters["high"]
        tolerance = 1e-4 * max(1.0, *map(abs, values))
        assert all(parameters["low"] - tolerance <= value <= parameters["high"] + tolerance for value in values)

    def test_fractions_are_drawn_in_percent(self) -> None:
        """The unit is the title of the axis, in tooltips, in the CSV file and in the description."""
        spec = _drawn(time_chart_spec("share", [_line(0.48, 0.5125)], unit="%", scale=100, value_title="share"))
        assert [row["v"] for row in spec["datasets"]["rows"]] == [48, 51.25]
        assert spec["usermeta"]["columns"]["v"] == "share (%)"
        assert "%" in _texts(spec)
        assert "Newest values in %: effect 51.25." in spec["description"]

    @pytest.mark.parametrize("unit", ["%", "percentage points", "user's", "a\\b", "' + x + '"])
    def test_a_configured_unit_changes_no_number_and_no_expression(self, unit: str) -> None:
        """A unit is any text: only data, parameters, titles and columns have it."""
        forest = forest_plot_spec("f", [ForestRow("a", 4.2, 4.0, 4.5)], unit=unit, value_title="effect")
        for spec in (_drawn(time_chart_spec("t", [_line(4.2)], unit=unit)), _drawn(forest)):
            assert [row["v"] for row in spec["datasets"]["rows"]] == [4.2]
            assert _parameters(spec)["unitSuffix"] == f" {unit}"
            texts = [step["calculate"] for step in spec["transform"] if step["as"] in {"value", "interval"}]
            assert texts
            assert not any(unit in text for text in texts)

    def test_a_value_that_is_rounded_to_zero_has_no_sign(self) -> None:
        """Minus zero would look like a loss."""
        spec = _drawn(time_chart_spec("small", [_line(1.0, -0.0001)], signed=True))
        assert spec["description"].endswith("Newest values: effect 0.")

    def test_times_are_on_the_clock_of_the_zone(self) -> None:
        """Midnight in Berlin is at 00:00, in winter and in summer; CSV and axis name the zone."""
        winter_ms, summer_ms = START_MS - HOUR_MS, START_MS + 180 * DAY_MS - 2 * HOUR_MS
        line = Line("effect", [Point(winter_ms, 1.0), Point(summer_ms, 2.0)])
        spec = _drawn(time_chart_spec("zone", [line], zone="Europe/Berlin"))
        assert [row["t"] % DAY_MS for row in spec["datasets"]["rows"]] == [0, 0]
        assert spec["usermeta"]["columns"]["t"] == "time (Europe/Berlin)"
        assert "time in Europe/Berlin" in _texts(spec)
        assert "Sun 1 Nov 2026 to" in spec["description"]

    def test_the_description_has_the_newest_values_and_the_events(self) -> None:
        """A screen reader gets a sentence instead of the drawing."""
        spec = _drawn(EVERY_KIND["effect"])
        assert spec["description"] == (
            "effect, Sun 1 Nov 2026 to Thu 5 Nov 2026. Newest values in percentage points: effect +30 (−20 to +80); "
            "all +10. Events: share change on Mon 2 Nov 2026; drop on Tue 3 Nov 2026."
        )

    def test_values_have_seven_significant_digits(self) -> None:
        """More would enlarge the page for nothing; counts stay exact."""
        spec = _drawn(time_chart_spec("digits", [_line(0.123456789, 12_345_678.0)]))
        assert [row["v"] for row in spec["datasets"]["rows"]] == [0.1234568, 12345678]


class TestEvents:
    """Labels of many events."""

    @staticmethod
    def _rows(events: Sequence[EventMark]) -> list[dict[str, Any]]:
        return list(_drawn(time_chart_spec("e", [_line(*range(61))], events=events))["datasets"]["events"])

    def test_labels_of_a_narrow_chart_are_the_important_and_the_newest_ones(self) -> None:
        """All labels at all widths are apart from each other."""
        events = [EventMark(START_MS + day * DAY_MS, f"day {day}", day == 31) for day in range(28, 40)]
        rows = self._rows(events)
        assert {row["e"] for row in rows if row["w"] <= 300} == {"day 31", "day 39", "day 35"}
        assert all(row["w"] < 1200 for row in rows)
        span_ms = 60 * DAY_MS * 1.02
        for width in (300, 500, 900, 1200):
            places = sorted(row["t"] * width / span_ms for row in rows if row["w"] <= width)
            assert all(second - first >= 14 for first, second in pairwise(places))

    def test_events_of_one_time_share_a_label(self) -> None:
        """The important ones come first; a repeated one is named once."""
        labels = (("drop", False), ("verdict change", True), ("drop", False))
        (row,) = self._rows([EventMark(START_MS + DAY_MS, label, important) for label, important in labels])
        assert row["e"] == "verdict change · drop"


class TestForestPlot:
    """Intervals in rows."""

    def test_rows_keep_their_order_and_missing_values_have_a_text(self) -> None:
        """No row is left out."""
        rows = _drawn(EVERY_KIND["forest plot"])["datasets"]["rows"]
        assert [(row["n"], row["m"]) for row in rows] == [("a", ""), ("b", "too few students"), ("c", "")]
        assert "b unknown" in _drawn(EVERY_KIND["forest plot"])["description"]

    def test_zero_is_on_the_axis(self) -> None:
        """Even if all intervals are far from it."""
        parameters = _parameters(_drawn(forest_plot_spec("far", [ForestRow("a", 5.0, 4.0, 6.0)])))
        assert parameters["low"] < 0
        assert parameters["high"] > 6

    def test_without_values_there_is_no_plot(self) -> None:
        """Names alone are no chart."""
        assert forest_plot_spec("empty", [ForestRow("a", None, None, None)]) is None


class TestGuardrailBars:
    """Harm against margins."""

    def test_harm_is_in_units_of_the_allowed_harm(self) -> None:
        """So guardrails with different units share an axis, which ends at three times the allowed harm."""
        spec = _drawn(EVERY_KIND["guardrails"])
        assert [(row["l"], row["u"], row["v"]) for row in spec["datasets"]["rows"]] == [
            (0.2, 1.5, 0.9),
            (1.2, 18, None),
        ]
        parameters = _parameters(spec)
        assert (parameters["low"], parameters["high"]) == (-0.6, 3.1)
        assert [(row["a"], row["b"]) for row in spec["datasets"]["rows"]] == [(0.2, 1.5), (1.2, 3)]
        assert "escalated: still open, harm +0.2 to +1.5 percentage points" in spec["description"]

    @pytest.mark.parametrize(("lower", "upper", "sign"), [(4.0, 6.0, 1), (-6.0, -4.0, -1)])
    def test_a_bar_beyond_the_axis_is_drawn_at_its_end(self, lower: float, upper: float, sign: int) -> None:
        """With an arrow; tooltip and CSV have the true values."""
        bar = GuardrailBar("latency", lower, upper, (lower + upper) / 2, 1.0, "bad", "failed", "far")
        spec = _drawn(guardrail_bars_spec("far", [bar]))
        (row,) = spec["datasets"]["rows"]
        parameters = _parameters(spec)
        assert parameters["low"] < row["a"] < row["b"] < parameters["high"]
        assert row["above" if sign > 0 else "below"] == 3 * sign
        assert "c" not in row
        assert (row["l"], row["u"], row["v"]) == (lower, upper, 5 * sign)
        assert {"l", "u", "v"} <= spec["usermeta"]["columns"].keys()

    def test_without_guardrails_there_is_no_chart(self) -> None:
        """None of them has bounds yet."""
        assert guardrail_bars_spec("empty", []) is None


class TestIntervalBar:
    """A small bar of an effect."""

    def test_bars_of_several_experiments_share_a_scale(self) -> None:
        """The scale is an argument; values are in per cent."""
        spec = _drawn(EVERY_KIND["interval"])
        assert spec["datasets"]["rows"] == [{"v": 16, "l": 7, "u": 25, "o": "good"}]
        assert (_parameters(spec)["low"], _parameters(spec)["high"]) == (-30, 40)
        assert spec["description"] == "effect, in %: +16 (+7 to +25)."

    def test_an_unknown_effect_has_no_bar(self) -> None:
        """Nor one without an interval."""
        assert interval_bar_spec("effect", (0.1, None, None), (-1.0, 1.0), "open") is None
