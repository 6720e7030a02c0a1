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


def target(expr: str, legend: str, *, ref: str = "A", instant: bool = False, table: bool = False) -> JSON:
    """Return one query; `instant` asks only for the value at the end of the shown time range, as rows of a `table`."""
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


def steps(base: str, *above: tuple[float, str]) -> list[JSON]:
    """Return threshold steps: `base` from minus infinity, then (from this value on, colour) in rising order."""
    return [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in above)]


def colored(pattern: str, color: str) -> JSON:
    """Return an override that fixes the colour of every series whose name matches the pattern."""
    return {
        "matcher": {"id": "byRegexp", "options": f"/{pattern}/"},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
    }


def grey(ref: str) -> JSON:
    """Return an override that draws what a query returns in the control's grey, whatever its name is."""
    color = {"mode": "fixed", "fixedColor": CONTROL_GREY}
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": [{"id": "color", "value": color}]}


def dashed(ref: str, *, named: bool = True) -> JSON:
    """Return an override that draws what a query returns with thin dashes; without a name, it is not in the legend."""
    style = {"fill": "dash", "dash": [4, 4]}
    hidden = [] if named else [{"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}}]
    return {
        "matcher": {"id": "byFrameRefID", "options": ref},
        "properties": [
            {"id": "custom.lineStyle", "value": style},
            {"id": "custom.lineWidth", "value": 1},
            *hidden,
        ],
    }


def text_values(name: str, texts: Mapping[int, tuple[str, str]]) -> JSON:
    """Return an override that shows the values of one series as words: value → (text, colour)."""
    options = {str(value): {"text": text, "color": color, "index": value} for value, (text, color) in texts.items()}
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "mappings", "value": [{"type": "value", "options": options}]}],
    }


def column(name: str, *properties: tuple[str, Any]) -> JSON:
    """Return an override of one column of a table: (property, value) pairs."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def link(title: str, url: str) -> JSON:
    """Return a link that a click on a value follows, in the same tab."""
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


def graph(
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
) -> JSON:
    """Return a time series panel; `thresholds` are drawn as dashed lines, gaps stay gaps."""
    defaults: JSON = {
        "unit": unit,
        "color": {"mode": "palette-classic-by-name"},
        "thresholds": {"mode": "absolute", "steps": list(thresholds or steps(GREEN))},
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


def stat(
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
    """Return the newest value of each series as large text, coloured by `thresholds` or else by series."""
    defaults: JSON = {
        "unit": unit,
        "color": {"mode": "thresholds" if thresholds else "palette-classic-by-name"},
        "thresholds": {"mode": "absolute", "steps": list(thresholds or steps(GREEN))},
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


def states(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    size: tuple[int, int],
    overrides: Iterable[JSON],
) -> JSON:
    """Return a state timeline: one bar per series, coloured by the words that `overrides` give to its values."""
    defaults: JSON = {
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps(GREEN)},
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


def table(
    title: str,
    description: str,
    targets: Sequence[JSON],
    *,
    key: str,
    columns: Mapping[str, str],
    size: tuple[int, int],
    overrides: Iterable[JSON],
) -> JSON:
    """Return a table with a row for each value of the label `key`; `columns` are label or `Value #ref` → heading."""
    defaults: JSON = {
        "unit": "short",
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps(GREEN)},
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
                "indexByName": {name: at for at, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        },
    ]
    return panel


def laid_out(sections: Sequence[tuple[str, Sequence[JSON]]]) -> list[JSON]:
    """Return the panels of titled rows placed left to right, top to bottom, with stable ids.

    A panel that does not fit beside the ones before it starts a new line under the tallest of them.
    """
    placed: list[JSON] = []
    y = 0
    for title, panels in sections:
        row = {"type": "row", "title": title, "collapsed": False, "panels": []}
        placed.append({**row, "id": len(placed) + 1, "gridPos": {"h": 1, "w": GRID_COLUMNS, "x": 0, "y": y}})
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
            if x + width > GRID_COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed.append({**panel, "id": len(placed) + 1, "gridPos": {"h": height, "w": width, "x": x, "y": y}})
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return placed
