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
    mark = _mark("Alerts", f'ALERTS{{alertstate="firing", {selector}}}', "red", "{{alertname}}")
    return {**mark, "textFormat": "{{variant}} {{topic}} {{instance}}", "tagKeys": "severity"}


def milestones(selector: str) -> list[JSON]:
    """Return marks where an experiment starts, its shares change, a verdict changes, and where deployments are noted.

    The last are Grafana's own annotations with the tag `deployment`: whoever deploys writes them.
    """
    start = f"abmonitor_experiment_start_timestamp_seconds{{{selector}}} * 1000"
    share, state = f"abmonitor_intended_share{{{selector}}}", f"abmonitor_verdict{{{selector}}} == 1"
    return [
        {**_mark("Start", start, "blue", "start of {{experiment}}"), "useValueForTime": True},
        _mark("Shares", f"{share} != {share} offset 1m", "purple", "share of {{variant}} changed"),
        _mark(
            "Verdicts",
            f"{state} unless abmonitor_verdict{{{selector}}} offset 1m == 1",
            "orange",
            "{{variant}}: {{state}}",
        ),
        {
            "name": "Deployments",
            "datasource": {"type": "grafana", "uid": "-- Grafana --"},
            "enable": True,
            "hide": False,
            "iconColor": "green",
            "target": {"limit": 100, "matchAny": False, "tags": ["deployment"], "type": "tags"},
        },
    ]


def _mark(name: str, expr: str, color: str, title: str) -> JSON:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "target": {"expr": expr, "interval": "60s", "refId": name},
        "expr": expr,
        "step": "60s",
        "titleFormat": title,
        "textFormat": "",
        "useValueForTime": False,
    }


def board(
    uid: str,
    title: str,
    description: str,
    *,
    choices: Sequence[JSON],
    sections: Sequence[tuple[str, Sequence[JSON]]],
    marks: Sequence[JSON],
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
        "annotations": {"list": list(marks)},
        "refresh": "30s",
        "time": {"from": since, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "templating": {"list": list(choices)},
        "panels": laid_out(sections),
    }
