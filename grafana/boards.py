"""What the boards have in common: addresses, the way from one to the other, how they are opened."""

from __future__ import annotations

from collections.abc import Sequence

from grafana.panels import DATASOURCE, JSON, laid_out, link

TAG = "ab-monitor"
EXPERIMENTS, EXPERIMENT, PIPELINE = "abmonitor-experiments", "abmonitor-experiment", "abmonitor-pipeline"
"""Addresses: bookmarks and alerts link to them."""

_KEPT = "${datasource:queryparam}&${__url_time_range}"
TO_PIPELINE = link("Pipeline", f"/d/{PIPELINE}?{_KEPT}")
TO_EXPERIMENT = link("Compare its variants", f"/d/{EXPERIMENT}?var-experiment=${{__value.raw:percentencode}}&{_KEPT}")
"""Of a cell that holds the experiment's name."""


def alerts(selector: str) -> JSON:
    """Return marks on all graphs of a board where alerts with those labels fire.

    Newer Grafanas read `target`, older ones `expr` and `step`.
    """
    expr = f'ALERTS{{alertstate="firing", {selector}}}'
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "target": {"expr": expr, "interval": "60s", "refId": "Alerts"},
        "expr": expr,
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{variant}} {{topic}} {{instance}}",
        "tagKeys": "severity",
        "useValueForTime": False,
    }


def board(
    uid: str,
    title: str,
    description: str,
    *,
    choices: Sequence[JSON],
    sections: Sequence[tuple[str, Sequence[JSON]]],
    marks: JSON,
    since: str = "now-1h",
) -> JSON:
    """Return a board that shows the time since `since` and leads to the others from a menu."""
    menu = {
        "type": "dashboards",
        "title": "AB Monitor",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": 39,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [menu],
        "annotations": {"list": [marks]},
        "refresh": "30s",
        "time": {"from": since, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "templating": {"list": list(choices)},
        "panels": laid_out(sections),
    }
