"""Building blocks of a board: plain dicts in Grafana's classic model (schema version 39).

A size is (width, height) on Grafana's grid of 24 columns; a height of 1 is 30 pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

JSON = dict[str, Any]

GRID_COLUMNS = 24
DATASOURCE: JSON = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
CONTROL_GREY = "#8e8e8e"
TREATMENT_BLUE = "#3274d9"


def query_target(expr: str, legend: str, *, ref: str = "A", instant: bool = False, table: bool = False) -> JSON:
    """Return the target of a panel. `instant` queries only the end of the time range; `table` asks for table rows."""
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expr,
        "format": "table" if table else "time_series",
        "instant": instant,
        "legendFormat": legend,
        "range": not instant,
        "refId": ref,
    }


def threshold_steps(base: str, *thresholds: tuple[float, str]) -> list[JSON]:
    """Return threshold steps: colour `base` from minus infinity, then (lower limit, colour) in rising order."""
    return [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in thresholds)]


def color_override(pattern: str, color: str) -> JSON:
    """Return an override with a fixed colour for all series with names that match the pattern."""
    return {
        "matcher": {"id": "byRegexp", "options": f"/{pattern}/"},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
    }


def control_color_override(ref: str) -> JSON:
    """Return an override that draws the series of the target `ref` in the grey of the control."""
    color = {"mode": "fixed", "fixedColor": CONTROL_GREY}
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": [{"id": "color", "value": color}]}


def dash_override(ref: str, *, in_legend: bool = True) -> JSON:
    """Return an override that draws the series of the target `ref` as thin dashes, in the legend if `in_legend`."""
    style = {"fill": "dash", "dash": [4, 4]}
    hidden = [] if in_legend else [{"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}}]
    return {
        "matcher": {"id": "byFrameRefID", "options": ref},
        "properties": [
            {"id": "custom.lineStyle", "value": style},
            {"id": "custom.lineWidth", "value": 1},
            *hidden,
        ],
    }


def text_override(name: str, texts: Mapping[int, tuple[str, str]]) -> JSON:
    """Return an override that shows the values of the series `name` as texts: value → (text, colour)."""
    options = {str(value): {"text": text, "color": color, "index": value} for value, (text, color) in texts.items()}
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "mappings", "value": [{"type": "value", "options": options}]}],
    }


def column_override(name: str, *properties: tuple[str, Any]) -> JSON:
    """Return an override of a table column, with (property, value) pairs."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def data_link(title: str, url: str) -> JSON:
    """Return the link of a value, which opens in the same tab."""
    return {"title": title, "url": url, "targetBlank": False}


def _panel(
    kind: str, title: str, description: str, targets: Sequence[JSON], *, size: tuple[int, int], defaults: JSON
) -> JSON:
    width, height = size
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "targets": list(targets),
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def time_series_panel(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    unit: str,
    size: tuple[int, int],
    decimals: int | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    thresholds: Sequence[JSON] | None = None,
    stacked: bool = False,
    overrides: Iterable[JSON] = (),
    empty: str = "no data",
) -> JSON:
    """Return a panel with lines over time, with gaps at missing values. `thresholds` are drawn as dashed lines.

    Without any value the panel shows the text `empty`.
    """
    defaults: JSON = {
        "unit": unit,
        "noValue": empty,
        "color": {"mode": "palette-classic-by-name"},
        "thresholds": {"mode": "absolute", "steps": list(thresholds or threshold_steps(GREEN))},
        "custom": {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1 if stacked else 2,
            "fillOpacity": 30 if stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
        },
    }
    bounds = {"decimals": decimals, "min": minimum, "max": maximum}
    defaults.update({key: value for key, value in bounds.items() if value is not None})
    panel = _panel("timeseries", title, description, targets, size=size, defaults=defaults)
    panel["fieldConfig"]["overrides"] = list(overrides)
    panel["options"] = {
        "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def stat_panel(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    unit: str,
    size: tuple[int, int],
    decimals: int | None = None,
    thresholds: Sequence[JSON] | None = None,
    overrides: Iterable[JSON] = (),
    links: Sequence[JSON] = (),
    empty: str = "no data",
) -> JSON:
    """Return a panel with the newest value of each series as large text, coloured by `thresholds` or by series name."""
    defaults: JSON = {
        "unit": unit,
        "color": {"mode": "thresholds" if thresholds else "palette-classic-by-name"},
        "thresholds": {"mode": "absolute", "steps": list(thresholds or threshold_steps(GREEN))},
        "noValue": empty,
        "links": list(links),
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    panel = _panel("stat", title, description, targets, size=size, defaults=defaults)
    panel["fieldConfig"]["overrides"] = list(overrides)
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value_and_name",
        "wideLayout": True,
    }
    return panel


def state_timeline_panel(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    size: tuple[int, int],
    overrides: Iterable[JSON],
    empty: str = "no data",
) -> JSON:
    """Return a state timeline: a bar per series, with the texts and colours that `overrides` define for values."""
    defaults: JSON = {
        "noValue": empty,
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": threshold_steps(GREEN)},
        "custom": {"fillOpacity": 70, "lineWidth": 0},
    }
    panel = _panel("state-timeline", title, description, targets, size=size, defaults=defaults)
    panel["fieldConfig"]["overrides"] = list(overrides)
    panel["options"] = {
        "alignValue": "left",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel


def table_panel(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    key: str,
    columns: Mapping[str, str],
    size: tuple[int, int],
    overrides: Iterable[JSON],
) -> JSON:
    """Return a table with a row for each value of the label `key`.

    `columns` maps a label, or `Value #ref` for the values of a target, to a heading.
    """
    defaults: JSON = {
        "unit": "short",
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": threshold_steps(GREEN)},
        "noValue": "–",
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
    }
    panel = _panel("table", title, description, targets, size=size, defaults=defaults)
    panel["fieldConfig"]["overrides"] = list(overrides)
    panel["options"] = {"cellHeight": "sm", "frameIndex": 0, "showHeader": True, "sortBy": []}
    panel["transformations"] = [
        {"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        },
    ]
    return panel


def lay_out(sections: Sequence[tuple[str, Sequence[JSON]]]) -> list[JSON]:
    """Return the panels of titled sections with grid positions, left to right and top to bottom, and consecutive ids.

    A panel that does not fit into the current line starts a new line below the tallest panel of the line.
    """
    positioned: list[JSON] = []
    y = 0
    for title, panels in sections:
        row = {"type": "row", "title": title, "collapsed": False, "panels": []}
        positioned.append({**row, "id": len(positioned) + 1, "gridPos": {"h": 1, "w": GRID_COLUMNS, "x": 0, "y": y}})
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
            if x + width > GRID_COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            positioned.append(
                {**panel, "id": len(positioned) + 1, "gridPos": {"h": height, "w": width, "x": x, "y": y}}
            )
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return positioned
