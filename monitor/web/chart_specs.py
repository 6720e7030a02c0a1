"""Vega-Lite specifications of the charts, made by Altair from plain records.

`static/charts.js` draws them, and the macro `chart` of `templates/charts.html` writes them into a page. Colours are CSS
variables of `static/charts.css`.

Altair needs 10 to 20 ms for a chart, so everything that depends on the data is outside of its part: rows are named data
sets, and ranges and formats are parameters. Charts of the same *shape* share a cached specification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

from monitor.clock import HOUR_MS
from monitor.days import UTC_ZONE

if TYPE_CHECKING:
    import altair as alt

ChartSpec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification with sentences in `description`, and title, file name and CSV columns in `usermeta`."""
Unit: TypeAlias = str
"""Unit of the values in words, any text or empty. The unit does not change the numbers: see the argument `scale`."""
PER_CENT: Final = 100.0
"""Scale of fractions that a chart shows in per cent or percentage points."""
Stroke: TypeAlias = Literal["solid", "dashed", "dotted"]
Tone: TypeAlias = Literal["good", "bad", "open"]
"""Colour of a judged interval: fine, harmful, or undecided."""
GuardrailTone: TypeAlias = Literal["good", "tolerable", "bad", "open"]
"""Colour of a guardrail: as `Tone`, or a certain harm that is smaller than the allowed harm."""

_DASHES: Final[Mapping[Stroke, list[int]]] = {"solid": [1, 0], "dashed": [7, 4], "dotted": [2, 3]}
_TONES: Final[tuple[Tone, ...]] = ("good", "bad", "open")
_GUARDRAIL_TONES: Final[tuple[GuardrailTone, ...]] = ("good", "tolerable", "bad", "open")
_HEIGHT: Final = 240
_ROW_HEIGHT: Final = 30
_GUARDRAIL_ROW_HEIGHT: Final = 44
_BAR_OFFSET: Final = 7
"""Pixels from the middle of a guardrail's row down to its bar; the state is above the bar."""
_MAX_SHAPES: Final = 256
_MAX_DOTS: Final = 40
"""Lines with at most this many points have a dot at each point."""
_UNSCALED_START: Final = 0.25
"""Fraction of a line's points, from its start, whose bands do not widen the value axis."""
_SIGNIFICANT_DIGITS: Final = 7
_MAX_BAR_HARM: Final = 3.0
"""Harm in units of the allowed harm at which bars are cut off."""
_STUB: Final = 0.25
"""Length of a bar that is wholly beyond the axis, in units of the allowed harm."""
_PALETTE_SIZE: Final = 6
_EVENT_LABEL_WIDTH: Final = 15
"""Pixels between the labels of two events, which are written upwards."""
_LEAST_WIDTH: Final = 200
_GREATEST_WIDTH: Final = 100_000
_WIDTH_STEP: Final = 1.2
"""Widths of the time axis for which labels are chosen: pixels, and the factor from one to the next."""
_CHARACTER_WIDTH: Final = 7
"""Pixels of a character of a legend."""
_TIME_PARAMETERS: Final = (
    {"name": "minStep", "expr": "(domain('x')[1] - domain('x')[0]) / max(2, floor(width / 64))"},
    {
        "name": "tickStep",
        "expr": "minStep <= 36e5 ? 36e5 : minStep <= 108e5 ? 108e5 : minStep <= 216e5 ? 216e5 : "
        "minStep <= 432e5 ? 432e5 : ceil(minStep / 864e5) * 864e5",
    },
    {"name": "newestTick", "expr": "floor(domain('x')[1] / min(864e5, tickStep)) * min(864e5, tickStep)"},
)
"""Ticks are at full hours or midnights, and count back from the newest one, so that the newest day has a label."""
_TIME_TICKS: Final = "sequence(newestTick, domain('x')[0] - 1, -tickStep)"
_TIME_LABEL: Final = (
    "utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M') : "
    "[utcFormat(datum.value, '%a'), utcFormat(datum.value, '%-d %b')]"
)
_WHEN: Final = "utcFormat(datum.t, '%a %-d %b %Y, %H:%M')"
_VALUE_LABEL: Final = "datum.value ? format(datum.value, valueFormat) : '0'"


def _numbers_text(numbers: str) -> str:
    """Return the expression of numbers and their unit as text; D3 would write a small negative number as −0."""
    return f"replace({numbers}, regexp('[+−]0(?![.\\\\d])', 'g'), '0') + unitSuffix"


_VALUE: Final = "(isValid(datum.v) ? format(datum.v, valueFormat) : '–')"
_BOUNDS: Final = "format(datum.l, valueFormat) + ' to ' + format(datum.u, valueFormat)"
_VALUE_TEXT: Final = _numbers_text(_VALUE)
_INTERVAL_TEXT: Final = _numbers_text(f"(isValid(datum.l) && isValid(datum.u) ? {_BOUNDS} : '–')")
_BOUNDED_VALUE_TEXT: Final = _numbers_text(f"{_VALUE} + (isValid(datum.l) ? ' (' + {_BOUNDS} + ')' : '')")
_ROW_LABEL: Final = (
    "length(datum.label) > (width < 400 ? 18 : 28) ? "
    "split(replace(datum.label, regexp('^(.{6,24}) '), '$1\\n'), '\\n') : datum.label"
)
"""The name of a row, in two lines if it is long."""
_HORIZONTAL_TICKS: Final = "max(3, floor(width / 90))"


@dataclass(frozen=True, slots=True)
class Point:
    """A value and its bounds at a time. A value of None is a gap in the line; a bound of None is a gap in the band."""

    at_ms: float
    value: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points by rising time. Dotted and dashed lines are approximate, or of other settings.

    `color` is 0 for the control and greater for treatments; 2 is also the colour of harm. Labels of a chart differ.
    """

    label: str
    points: Sequence[Point]
    color: int = 1
    stroke: Stroke = "solid"
    band: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A horizontal line at a value; a limit has the colour of harm. A line without a label is thin and solid."""

    value: float
    label: str = ""
    is_limit: bool = False


@dataclass(frozen=True, slots=True)
class EventMark:
    """A labelled vertical line at an event, such as "share change", "verdict change" or "drop"."""

    at_ms: float
    label: str
    is_important: bool = False
    """Whether the label has priority where not all labels find room; among equals, the newest have."""


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A row of a forest plot: a value with bounds, None if undefined."""

    label: str
    value: float | None
    lower: float | None
    upper: float | None
    highlighted: bool = False
    """Whether the value differs from 0 significantly."""


@dataclass(frozen=True, slots=True)
class GuardrailBar:
    """The bounds of the harm on a guardrail, its observed value and the allowed harm, all in the guardrail's unit."""

    label: str
    lower: float
    upper: float
    observed: float | None
    margin: float
    """Above 0."""
    tone: GuardrailTone
    state: str
    """Words above the bar."""
    interval: str
    """The bounds in words, in the guardrail's unit, for the tooltip."""


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A row of a bar chart: one value for each series, and single values of each series that are drawn as circles."""

    label: str
    values: Sequence[float | None]
    circles: Sequence[Sequence[float]]


def time_chart_spec(
    title: str,
    lines: Sequence[Line],
    *,
    reference_lines: Sequence[ReferenceLine] = (),
    events: Sequence[EventMark] = (),
    unit: Unit = "",
    scale: float = 1.0,
    signed: bool = False,
    value_title: str = "value",
    zone: str = UTC_ZONE,
) -> ChartSpec | None:
    """Return lines over time with bands, reference lines and marks of events; None if no line has a value.

    All values are multiplied by `scale`, which gives them the unit. Times are on the clock of `zone`. With `signed`,
    values have a sign.
    """
    lines = [line for line in lines if any(point.value is not None for point in line.points)]
    if not lines:
        return None
    local_ms = _local_time(zone)
    rows = [row for line in lines for row in _line_rows(line, scale, local_ms)]
    first, last = _time_domain([row["t"] for row in rows])
    low, high = (scale * bound for bound in _value_domain(lines, [line.value for line in reference_lines]))
    digits = _digits(high - low)
    has_dots = max(len(line.points) for line in lines) <= _MAX_DOTS
    datasets = {
        "rows": rows,
        "references": [
            {"y": _rounded(scale * line.value), "n": line.label, "k": line.is_limit} for line in reference_lines
        ],
        "events": _event_rows(events, last - first, local_ms),
    }
    notes = [unit, "" if zone == UTC_ZONE else f"time in {zone}"]
    parameters = {
        "first": first,
        "last": last,
        "low": low,
        "high": high,
        "valueFormat": _number_format(digits, signed=signed),
        "unitSuffix": _unit_suffix(unit),
        "note": " · ".join(filter(None, notes)),
        "dotOpacity": int(has_dots),
        "labels": [line.label for line in lines],
        "colors": [_color(line.color) for line in lines],
        "dashes": [_DASHES[line.stroke] for line in lines],
        "columnWidth": 40 + _CHARACTER_WIDTH * max(len(line.label) for line in lines),
    }
    suffix = f" ({unit})" if unit else ""
    columns = {"t": f"time ({zone})", "s": "line", "v": f"{value_title}{suffix}"}
    if any("l" in row for row in rows):
        columns |= {"l": f"lower bound{suffix}", "u": f"upper bound{suffix}"}
    format_value = _value_formatter(scale, digits, signed=signed)
    return _filled(
        _time_shape_spec(len(lines)),
        title,
        _describe_lines(title, lines, events, unit, format_value, zone),
        datasets,
        parameters,
        columns,
        ["t"],
    )


@lru_cache(_MAX_SHAPES)
def _time_shape_spec(line_count: int) -> ChartSpec:
    """Return the specification of a chart over time without data: names, colours and ranges are parameters."""
    import altair as alt  # noqa: PLC0415

    x = (
        alt.X("t:T")
        .scale(type="utc", domain=[alt.ExprRef("first"), alt.ExprRef("last")], nice=False)
        .axis(
            title=None, values=alt.ExprRef(_TIME_TICKS), labelExpr=_TIME_LABEL, labelFlush=True, labelOverlap=False,
            grid=False,
        )
    )  # fmt: skip
    y = (
        alt.Y("v:Q")
        .scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False, zero=False)
        .axis(title=None, labelExpr=_VALUE_LABEL)
    )

    def each_line(parameter: str) -> list[alt.ExprRef]:
        return [alt.ExprRef(f"{parameter}[{index}]") for index in range(line_count)]

    legend = (
        alt.Legend(
            symbolType="stroke", symbolOpacity=1, labelLimit=alt.ExprRef("width - 40"),
            columns=alt.ExprRef("max(1, floor(width / columnWidth))"),
        )
        if line_count > 1
        else None
    )  # fmt: skip
    color = alt.Color("s:N").scale(domain=each_line("labels"), range=each_line("colors")).legend(legend)
    dashes = alt.StrokeDash("s:N").scale(domain=each_line("labels"), range=each_line("dashes")).legend(legend)
    # All layers share axes and scales, which the line has.
    base = alt.Chart().encode(x="t:T", color=color)
    band = base.transform_filter("isValid(datum.l)").encode(y="l:Q", y2="u:Q")
    hover = alt.selection_point(
        name="hover", nearest=True, on="pointerover", clear="pointerout", fields=["t", "s"], empty=False
    )
    # Without a key, the wheel scrolls the page.
    zoom = alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey || event.metaKey || event.shiftKey]"
    )
    tooltip = [
        alt.Tooltip("s:N", title="title"),
        alt.Tooltip("when:N", title="time"),
        alt.Tooltip("value:N", title="value"),
    ]
    layers = [
        band.transform_filter("!datum.o").mark_area(opacity=0.16, clip=True).encode(detail="g:N"),
        band.transform_filter("datum.o").mark_rule(opacity=0.3, strokeWidth=6, clip=True),
        *_reference_layers(),
        *_event_layers(),
        base.mark_line(strokeWidth=2, strokeJoin="round", clip=True).encode(x=x, y=y, strokeDash=dashes),
        base.mark_point(filled=True, clip=True)
        .encode(
            y="v:Q",
            opacity=alt.condition(hover, alt.value(1), alt.value(alt.ExprRef("dotOpacity"))),
            size=alt.condition(hover, alt.value(90), alt.value(24)),
            tooltip=tooltip,
        )
        .add_params(hover, zoom),
        # The title of the value axis, and the time zone.
        alt.Chart(alt.InlineData([{"n": 0}])).mark_text(
            text=alt.ExprRef("note"), x=0, y=-12, align="left", baseline="middle", fontSize=12, clip=False
        ),
    ]
    chart = alt.layer(*layers, data=alt.NamedData("rows")).transform_calculate(when=_WHEN, value=_BOUNDED_VALUE_TEXT)
    spec = _shape_spec(chart.properties(width="container", height=_HEIGHT))
    return spec | {"params": [*_TIME_PARAMETERS, *spec["params"]]}


def _reference_layers() -> Iterator[alt.Chart]:
    import altair as alt  # noqa: PLC0415

    base = alt.Chart(alt.NamedData("references")).encode(y="y:Q")
    yield base.transform_filter("!datum.n").mark_rule(color="var(--chart-ink)", strokeWidth=1.2)
    labelled = base.transform_filter("datum.n")
    color = alt.condition("datum.k", alt.value("var(--chart-bad)"), alt.value("var(--chart-soft)"))
    yield labelled.mark_rule(strokeWidth=1.2, strokeDash=[5, 4]).encode(color=color)
    text = labelled.encode(text="n:N", x=alt.value(4))
    # The first text is a halo: the label stays readable on bands and lines.
    yield text.mark_text(
        align="left",
        baseline="bottom",
        dy=-3,
        fontSize=11,
        stroke="var(--chart-paper)",
        strokeWidth=3,
        strokeJoin="round",
    )
    yield text.mark_text(align="left", baseline="bottom", dy=-3, fontSize=11).encode(color=color)


def _event_layers() -> Iterator[alt.Chart]:
    import altair as alt  # noqa: PLC0415

    base = alt.Chart(alt.NamedData("events")).encode(x="t:T").transform_calculate(when=_WHEN)
    tooltip = [alt.Tooltip("e:N", title="title"), alt.Tooltip("when:N", title="time")]
    rule = base.mark_rule(color="var(--chart-open)", strokeWidth=1.4, strokeDash=[3, 3], clip=True)
    yield rule.encode(tooltip=tooltip)
    text = base.mark_text(
        angle=270, align="right", baseline="bottom", dx=-4, dy=-3, fontSize=11, color="var(--chart-open)", clip=True,
        limit=_HEIGHT - 12,
    )  # fmt: skip
    has_room = "datum.w <= width * (last - first) / (domain('x')[1] - domain('x')[0])"
    yield text.encode(y=alt.value(0), text=alt.condition(has_room, "e:N", alt.value("")))


def _event_rows(
    events: Sequence[EventMark], time_span: float, local_ms: Callable[[float], int]
) -> list[dict[str, Any]]:
    """Return a row per time of events; `w` is the width in pixels of the whole time from which its label has room.

    Events of the same time share a label. A label keeps its place in wider charts, so zooming in only adds labels.
    """
    by_priority = sorted(events, key=lambda event: (event.is_important, event.at_ms), reverse=True)
    labels: dict[int, list[str]] = {}
    for event in by_priority:
        texts = labels.setdefault(local_ms(event.at_ms), [])
        if event.label not in texts:
            texts.append(event.label)
    widths: dict[int, float] = {}
    width: float = _LEAST_WIDTH
    while len(widths) < len(labels) and width < _GREATEST_WIDTH:
        for at_ms in labels:
            if at_ms not in widths and all(
                abs(at_ms - other_ms) * width >= _EVENT_LABEL_WIDTH * time_span for other_ms in widths
            ):
                widths[at_ms] = width
        width *= _WIDTH_STEP
    return [
        {"t": at_ms, "e": " · ".join(texts), "w": round(widths.get(at_ms, width))} for at_ms, texts in labels.items()
    ]


def _line_rows(line: Line, scale: float, local_ms: Callable[[float], int]) -> Iterator[dict[str, Any]]:
    """Yield a row per point; `g` numbers the bands without gaps, and `o` marks a band of a single point."""

    def is_bounded(point: Point) -> bool:
        return line.band and point.value is not None and point.lower is not None and point.upper is not None

    for number, (bounded, run) in enumerate(groupby(line.points, is_bounded)):
        points = list(run)
        for point in points:
            row: dict[str, Any] = {"t": local_ms(point.at_ms), "s": line.label, "v": _scaled(point.value, scale)}
            if bounded:
                row |= {"l": _scaled(point.lower, scale), "u": _scaled(point.upper, scale), "g": number}
                if len(points) == 1:
                    row["o"] = True
            yield row


def _time_domain(times: Sequence[int]) -> tuple[int, int]:
    """Return the ends of the time axis."""
    first, last = min(times), max(times)
    # Without a margin, the edge of the plot would cut the first and the last dot.
    margin = (last - first) // 100 or 12 * HOUR_MS
    return first - margin, last + margin


def _value_domain(lines: Sequence[Line], references: Iterable[float]) -> tuple[float, float]:
    """Return the range of the value axis: all values and references, and the bounds except at the start of lines.

    An axis that would begin at 0 goes below 0 if bounds at the start of lines do.
    """
    values = list(references)
    early_bounds: list[float] = []
    for line in lines:
        for index, point in enumerate(line.points):
            if point.value is not None:
                values.append(point.value)
                bounds = [bound for bound in (point.lower, point.upper) if bound is not None] if line.band else []
                (values if index >= _UNSCALED_START * len(line.points) else early_bounds).extend(bounds)
    low, high = min(values), max(values)
    margin = 0.06 * (high - low)
    if not low - margin < high + margin:
        margin = 0.5 * abs(high) or 0.5
    has_early_space = low == 0 and min(early_bounds, default=0.0) < 0
    return (low - 2 * margin if has_early_space else low if low == 0 else low - margin), high + margin


def _describe_lines(
    title: str,
    lines: Sequence[Line],
    events: Sequence[EventMark],
    unit: Unit,
    format_value: Callable[[float], str],
    zone: str,
) -> str:
    """Return sentences with the period, the newest value of each line, and the events."""
    times = [point.at_ms for line in lines for point in line.points]
    newest = []
    for line in lines:
        point = next(point for point in reversed(line.points) if point.value is not None)
        newest.append(f"{line.label} {_describe_value(point.value, point.lower, point.upper, format_value)}")
    remarks = "; ".join(f"{event.label} on {_day_text(event.at_ms, zone)}" for event in events)
    return (
        f"{title}, {_day_text(min(times), zone)} to {_day_text(max(times), zone)}. "
        f"Newest values{f' in {unit}' if unit else ''}: {'; '.join(newest)}.{f' Events: {remarks}.' if remarks else ''}"
    )


def _describe_value(
    value: float | None, lower: float | None, upper: float | None, format_value: Callable[[float], str]
) -> str:
    if value is None:
        return "unknown"
    bounds = "" if lower is None or upper is None else f" ({format_value(lower)} to {format_value(upper)})"
    return f"{format_value(value)}{bounds}"


def _day_text(at_ms: float, zone: str) -> str:
    day = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    return f"{day:%a} {day.day} {day:%b %Y}"


def forest_plot_spec(
    title: str,
    rows: Sequence[ForestRow],
    *,
    unit: Unit = "",
    scale: float = 1.0,
    value_title: str = "effect",
    row_title: str = "group",
    missing_text: str = "too few students",
) -> ChartSpec | None:
    """Return a forest plot: an interval and a value per row, and a line at 0; None if no row has a value or bound.

    All values are multiplied by `scale`, which gives them the unit. A row without a value has `missing_text`.
    Highlighted rows have a colour of their own. Labels differ.
    """
    numbers = [number for row in rows for number in (row.value, row.lower, row.upper) if number is not None]
    if not numbers:
        return None
    low, high = scale * min(0.0, *numbers), scale * max(0.0, *numbers)
    digits, margin = _digits(high - low), 0.04 * (high - low) or 0.5
    data = [
        {
            "n": row.label,
            "v": _scaled(row.value, scale),
            "l": _scaled(row.lower, scale),
            "u": _scaled(row.upper, scale),
            "h": row.highlighted,
            "m": missing_text if row.value is None else "",
        }
        for row in rows
    ]
    format_value = _value_formatter(scale, digits, signed=True)
    texts = [f"{row.label} {_describe_value(row.value, row.lower, row.upper, format_value)}" for row in rows]
    suffix = f" ({unit})" if unit else ""
    return _filled(
        _forest_shape_spec(value_title, unit),
        title,
        f"{title}{f', in {unit}' if unit else ''}: {'; '.join(texts)}.",
        {"rows": data},
        {"low": _rounded(low - margin), "high": _rounded(high + margin)}
        | {"valueFormat": _number_format(digits, signed=True), "unitSuffix": _unit_suffix(unit)},
        {"n": row_title, "v": f"{value_title}{suffix}", "l": f"lower bound{suffix}", "u": f"upper bound{suffix}"}
        | {"h": "highlighted"},
    )


@lru_cache(_MAX_SHAPES)
def _forest_shape_spec(value_title: str, unit: Unit) -> ChartSpec:
    import altair as alt  # noqa: PLC0415

    x = _horizontal_channel(f"{value_title} ({unit})" if unit else value_title)
    color = alt.condition("datum.h", alt.value("var(--chart-c1)"), alt.value("var(--chart-c0)"))
    tooltip = [
        alt.Tooltip("n:N", title="title"),
        alt.Tooltip("value:N", title=value_title),
        alt.Tooltip("interval:N", title="interval"),
    ]
    base = alt.Chart().encode(y=_row_channel())
    layers = [
        # All rows have this text, so that it comes first for the order of the rows.
        base.mark_text(align="left", dx=6, fontSize=11, fontStyle="italic").encode(x=x("zero"), text="m:N"),
        _vertical_rule(0, x),
        base.mark_rule(strokeWidth=3, strokeCap="round").encode(x=x("l"), x2="u:Q", color=color, tooltip=tooltip),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x("v"), color=color, tooltip=tooltip),
    ]
    chart = alt.layer(*layers, data=alt.NamedData("rows")).transform_calculate(
        value=_VALUE_TEXT, interval=_INTERVAL_TEXT, zero="0"
    )
    return _shape_spec(chart.properties(width="container", height=alt.Step(_ROW_HEIGHT)))


def _horizontal_channel(title: str | None) -> Callable[[str], alt.X]:
    """Return a function from a field to its place on the horizontal axis; None: without an axis."""
    import altair as alt  # noqa: PLC0415

    scale = alt.Scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False, zero=False)
    axis = (
        None
        if title is None
        else alt.Axis(title=title, labelExpr=_VALUE_LABEL, labelFlush=True, tickCount=alt.ExprRef(_HORIZONTAL_TICKS))
    )
    return lambda field: alt.X(f"{field}:Q").scale(scale).axis(axis)


def _row_channel() -> alt.Y:
    """Return the place of named rows; a narrow chart cuts off long names."""
    import altair as alt  # noqa: PLC0415

    axis = alt.Axis(
        title=None, labelExpr=_ROW_LABEL, labelLimit=alt.ExprRef("max(140, 0.3 * width)"),
        labelColor="var(--chart-ink)", ticks=False, domain=False,
    )  # fmt: skip
    return alt.Y("n:N").sort(None).axis(axis)


def _vertical_rule(value: float, x: Callable[[str], alt.X], *, is_limit: bool = False) -> alt.Chart:
    import altair as alt  # noqa: PLC0415

    base = alt.Chart(alt.InlineData([{"x": value}])).encode(x=x("x"))
    rule: alt.Chart = (
        base.mark_rule(color="var(--chart-bad)", strokeWidth=1.4, strokeDash=[5, 4])
        if is_limit
        else base.mark_rule(color="var(--chart-ink)", strokeWidth=1.2)
    )
    return rule


def guardrail_bars_spec(title: str, bars: Sequence[GuardrailBar]) -> ChartSpec | None:
    """Return the bounds of the harm of several guardrails as bars, in units of the allowed harm; None without bars.

    A line is at 0 (no harm) and at 1 (the allowed harm); harm beyond is shaded. The state is above each bar. A bar that
    is longer than three times the allowed harm is cut off and ends with an arrow. Labels differ.
    """
    if not bars:
        return None
    data = [
        {
            "n": bar.label,
            "l": _rounded(bar.lower / bar.margin),
            "u": _rounded(bar.upper / bar.margin),
            "v": _scaled(bar.observed, 1 / bar.margin),
            "o": bar.tone,
            "e": bar.state,
            "i": bar.interval,
        }
        | _drawn_bar(bar)
        for bar in bars
    ]
    low = max(min(-0.5, *(bar.lower / bar.margin for bar in bars)), -_MAX_BAR_HARM) - 0.1
    high = min(max(1.5, *(bar.upper / bar.margin for bar in bars)), _MAX_BAR_HARM) + 0.1
    ratio = "÷ allowed harm"
    return _filled(
        _guardrail_shape_spec(),
        title,
        f"{title}: {'; '.join(f'{bar.label}: {bar.state}, harm {bar.interval}' for bar in bars)}.",
        {"rows": data},
        {"low": _rounded(low), "high": _rounded(high), "valueFormat": ",.2~f"},
        {"n": "guardrail", "e": "state", "l": f"least harm {ratio}", "u": f"most harm {ratio}"}
        | {"v": f"observed harm {ratio}", "i": "harm"},
    )


def _drawn_bar(bar: GuardrailBar) -> dict[str, Any]:
    """Return the visible part of a bar (`a` to `b`), its observed value (`c`), and the ends of the axis it passes."""

    def within_axis(harm: float, low: float = -_MAX_BAR_HARM, high: float = _MAX_BAR_HARM) -> float:
        return _rounded(min(max(harm, low), high))

    lower, upper = bar.lower / bar.margin, bar.upper / bar.margin
    observed = None if bar.observed is None else bar.observed / bar.margin
    row: dict[str, Any] = {
        "a": within_axis(lower, high=_MAX_BAR_HARM - _STUB),
        "b": within_axis(upper, low=-_MAX_BAR_HARM + _STUB),
    }
    if observed is not None and abs(observed) <= _MAX_BAR_HARM:
        row["c"] = _rounded(observed)
    if lower < -_MAX_BAR_HARM:
        row["below"] = -_MAX_BAR_HARM
    if upper > _MAX_BAR_HARM:
        row["above"] = _MAX_BAR_HARM
    return row


@lru_cache
def _guardrail_shape_spec() -> ChartSpec:
    import altair as alt  # noqa: PLC0415

    x = _horizontal_channel("harm ÷ allowed harm")
    color = (
        alt.Color("o:N")
        .scale(domain=list(_GUARDRAIL_TONES), range=[f"var(--chart-{tone})" for tone in _GUARDRAIL_TONES])
        .legend(None)
    )
    tooltip = [
        alt.Tooltip("n:N", title="title"),
        alt.Tooltip("e:N", title="state"),
        alt.Tooltip("i:N", title="harm"),
    ]
    base = alt.Chart().encode(y=_row_channel(), color=color, tooltip=tooltip)
    beyond = alt.Chart(alt.InlineData([{"x": 1, "y": 2 * _MAX_BAR_HARM}])).encode(x=x("x"), x2="y:Q")

    def arrow(field: str, shape: str) -> alt.Chart:
        mark = base.transform_filter(f"isValid(datum.{field})").mark_point(
            shape=shape, size=130, filled=True, opacity=1, yOffset=_BAR_OFFSET
        )
        chart: alt.Chart = mark.encode(x=x(field))
        return chart

    layers = [
        beyond.mark_rect(color="var(--chart-bad)", opacity=0.08, clip=True),
        base.mark_bar(height=12, opacity=0.55, cornerRadius=3, clip=True, yOffset=_BAR_OFFSET).encode(
            x=x("a"), x2="b:Q"
        ),
        base.mark_tick(thickness=3, size=18, clip=True, yOffset=_BAR_OFFSET).encode(x=x("c")),
        arrow("below", "triangle-left"),
        arrow("above", "triangle-right"),
        _vertical_rule(0, x),
        _vertical_rule(1, x, is_limit=True),
        # A colour alone would not tell a tolerable harm from an open question.
        base.mark_text(align="left", baseline="middle", dy=-12, fontSize=11, fontWeight=600).encode(
            x=alt.value(4), text="e:N"
        ),
    ]
    chart = alt.layer(*layers, data=alt.NamedData("rows"))
    return _shape_spec(chart.properties(width="container", height=alt.Step(_GUARDRAIL_ROW_HEIGHT)))


def interval_bar_spec(
    title: str, bounds: tuple[float | None, float | None, float | None], scale: tuple[float, float], tone: Tone
) -> ChartSpec | None:
    """Return a small bar of an effect (value, lower, upper bound) on a scale that bars share; None if undefined.

    Values are fractions, shown in per cent. The bar has no axis and no downloads; a line marks 0.
    """
    value, lower, upper = bounds
    if value is None or lower is None or upper is None:
        return None
    text = _describe_value(value, lower, upper, _value_formatter(PER_CENT, 1, signed=True))
    return _filled(
        _interval_shape_spec(),
        title,
        f"{title}, in %: {text}.",
        {
            "rows": [
                {
                    "v": _rounded(PER_CENT * value),
                    "l": _rounded(PER_CENT * lower),
                    "u": _rounded(PER_CENT * upper),
                    "o": tone,
                }
            ]
        },
        {"low": _rounded(PER_CENT * scale[0]), "high": _rounded(PER_CENT * scale[1]), "valueFormat": "+,.1~f"}
        | {"unitSuffix": " %"},
        {},
    )


@lru_cache
def _interval_shape_spec() -> ChartSpec:
    import altair as alt  # noqa: PLC0415

    x = _horizontal_channel(None)
    color = alt.Color("o:N").scale(domain=list(_TONES), range=[f"var(--chart-{tone})" for tone in _TONES]).legend(None)
    tooltip = [alt.Tooltip("value:N", title="effect"), alt.Tooltip("interval:N", title="interval")]
    base = alt.Chart().encode(color=color, tooltip=tooltip)
    layers = [
        _vertical_rule(0, x),
        base.mark_bar(height=8, opacity=0.5, cornerRadius=3, clip=True).encode(x=x("l"), x2="u:Q"),
        base.mark_tick(thickness=3, size=16, clip=True).encode(x=x("v")),
    ]
    chart = alt.layer(*layers, data=alt.NamedData("rows")).transform_calculate(
        value=_VALUE_TEXT, interval=_INTERVAL_TEXT
    )
    return _shape_spec(chart.properties(width="container", height=18))


def value_bars_spec(
    title: str, rows: Sequence[ValueRow], series: Sequence[str], *, value_title: str, row_title: str
) -> ChartSpec | None:
    """Return bars of several series in named rows, with circles for single values; None without any value.

    The first series has the colour of the control. Labels differ.
    """
    data: list[dict[str, Any]] = [
        {"n": row.label, "s": name, "v": _rounded(value)}
        for row in rows
        for name, value in zip(series, row.values, strict=True)
        if value is not None
    ]
    if not data:
        return None
    circles: list[dict[str, Any]] = [
        {"n": row.label, "s": name, "c": _rounded(value)}
        for row in rows
        for name, values in zip(series, row.circles, strict=True)
        for value in values
    ]
    values = [row["v"] for row in data] + [circle["c"] for circle in circles]
    low, high = min(0.0, *values), max(0.0, *values) or 1.0
    return _filled(
        _value_shape_spec(tuple(series), value_title),
        title,
        f"{title}: values of {', '.join(series)} in {len(rows)} rows.",
        {"rows": data, "circles": circles},
        {"low": low, "high": _rounded(high), "valueFormat": _number_format(_digits(high - low), signed=False)}
        | {"unitSuffix": ""},
        {"n": row_title, "s": "variant", "v": value_title},
    )


@lru_cache(_MAX_SHAPES)
def _value_shape_spec(series: tuple[str, ...], value_title: str) -> ChartSpec:
    import altair as alt  # noqa: PLC0415

    x = _horizontal_channel(value_title)
    color = alt.Color("s:N").scale(domain=list(series), range=[_color(index) for index in range(len(series))])
    row, offset = _row_channel(), alt.YOffset("s:N").scale(domain=list(series), paddingInner=0.1)
    tooltip = [alt.Tooltip("n:N", title="title"), alt.Tooltip("s:N", title="variant")]
    bars = alt.Chart().mark_bar(opacity=0.75, cornerRadiusEnd=2)
    circles = alt.Chart(alt.NamedData("circles")).mark_point(
        size=30, opacity=1, fill="var(--chart-paper)", stroke="var(--chart-ink)", strokeWidth=1
    )
    layers = [
        bars.encode(
            x=x("v"), y=row, yOffset=offset, color=color, tooltip=[*tooltip, alt.Tooltip("value:N", title=value_title)]
        ),
        circles.encode(x=x("c"), y=row, yOffset=offset, tooltip=[*tooltip, alt.Tooltip("c:Q", title="single value")]),
    ]
    chart = alt.layer(*layers, data=alt.NamedData("rows")).transform_calculate(value=_VALUE_TEXT)
    return _shape_spec(
        chart.properties(width="container", height=alt.Step(13 * len(series) + 8, **{"for": "position"}))
    )


def prepare_charts() -> None:
    """Import Altair and make the shapes of charts, so that no reader of a page waits for that."""
    for line_count in range(1, 4):
        _time_shape_spec(line_count)
    for unit in ("", "percentage points"):
        _forest_shape_spec("effect", unit)
    _guardrail_shape_spec()
    _interval_shape_spec()


def _shape_spec(chart: alt.TopLevelMixin) -> ChartSpec:
    """Return a chart as a specification without the theme of Altair: that of charts.js applies instead.

    Validation takes longer than everything else; tests validate every kind of chart.
    """
    spec: ChartSpec = chart.to_dict(validate=False)
    return {key: part for key, part in spec.items() if key not in {"$schema", "config"}}


def _filled(
    shape_spec: ChartSpec,
    title: str,
    description: str,
    datasets: dict[str, list[dict[str, Any]]],
    parameters: Mapping[str, object],
    columns: Mapping[str, str],
    time_fields: Sequence[str] = (),
) -> ChartSpec:
    """Return a specification with its data; the CSV download has the data set `rows`. The shape is not changed."""
    return {
        **shape_spec,
        "description": description,
        "datasets": shape_spec.get("datasets", {}) | datasets,
        "params": [
            *({"name": name, "value": value} for name, value in parameters.items()),
            *shape_spec.get("params", ()),
        ],
        "usermeta": {"title": title, "file": _file_name(title), "columns": columns, "times": time_fields},
    }


def _unit_suffix(unit: Unit) -> str:
    return f" {unit}" if unit else ""


def _local_time(zone: str) -> Callable[[float], int]:
    """Return a function from a time in ms to the time on the clock of the zone, as if that were UTC.

    Vega has only UTC and the zone of the browser.
    """
    if zone == UTC_ZONE:
        return int
    zone_info = ZoneInfo(zone)

    def local_ms(at_ms: float) -> int:
        offset = datetime.fromtimestamp(at_ms / 1000, zone_info).utcoffset()
        assert offset is not None
        return int(at_ms + 1000 * offset.total_seconds())

    return local_ms


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else _rounded(scale * value)


def _rounded(value: float) -> float:
    """Return a value with seven significant digits, as an integer where nothing is lost.

    >>> _rounded(0.123456789), _rounded(1200.0)
    (0.1234568, 1200)
    """
    if value == 0:
        return 0
    digits = _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, max(digits, 0))
    return int(rounded) if rounded == int(rounded) else rounded


def _digits(span: float) -> int:
    """Return the number of decimals with which a hundredth of an axis is visible."""
    return max(0, 2 - math.floor(math.log10(span))) if span > 0 else 2


def _number_format(digits: int, *, signed: bool) -> str:
    """Return the D3 format of numbers with at most so many decimals.

    >>> _number_format(3, signed=True), _number_format(0, signed=False)
    ('+,.3~f', ',.0f')
    """
    return f"{'+' if signed else ''},.{digits}{'~' if digits else ''}f"


def _value_formatter(scale: float, digits: int, *, signed: bool) -> Callable[[float], str]:
    """Return a function from a value to the text that tooltips have; a value that is rounded to 0 has no sign."""

    def format_value(value: float) -> str:
        text = f"{scale * value:{'+' if signed else ''},.{digits}f}"
        text = text.rstrip("0").rstrip(".") if digits else text
        return "0" if text in {"+0", "-0"} else text.replace("-", "−")

    return format_value


def _color(color: int) -> str:
    return f"var(--chart-c{color if color <= _PALETTE_SIZE else 1 + (color - 1) % _PALETTE_SIZE})"


def _file_name(title: str) -> str:
    """Return a file name without extension.

    >>> _file_name("Effect of B on nDCG@5")
    'effect-of-b-on-ndcg-5'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "chart"
