"""Common parts of all boards: addresses, links, annotations, and the frame of a board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deploy.alerting.rules import SYSTEM
from grafana.panels import DATASOURCE, JSON, data_link, lay_out
from grafana.variables import (
    MONITOR_VARIABLE,
    datasource_variable,
    monitor_variable,
    of_chosen_system,
    system_variables,
)

TAG = "ab-monitor"
EXPERIMENTS, EXPERIMENT, PIPELINE = "abmonitor-experiments", "abmonitor-experiment", "abmonitor-pipeline"
"""Unique ids of the boards, which are part of their addresses; bookmarks and alerts contain them."""

_QUERY_PARAMETERS = "&".join([*(f"${{{name}:queryparam}}" for name in ("datasource", *SYSTEM)), "${__url_time_range}"])
PIPELINE_LINK = data_link("Pipeline", f"/d/{PIPELINE}?{_QUERY_PARAMETERS}")
EXPERIMENT_LINK = data_link(
    "Compare its variants", f"/d/{EXPERIMENT}?var-experiment=${{__value.raw:percentencode}}&{_QUERY_PARAMETERS}"
)
"""The link of a table cell whose value is the name of an experiment."""
_MONITOR: Final = f"${{{MONITOR_VARIABLE}:raw}}"
MONITOR_EXPERIMENT_LINK = data_link(
    "Verdict in words, on AB Monitor's page", f"{_MONITOR}/experiments/${{experiment:percentencode}}"
)
"""The link of a value on the board of an experiment."""
MONITOR_PLAN_LINK = data_link(
    "Plan with other choices, on AB Monitor's page", f"{_MONITOR}/experiments/${{experiment:percentencode}}/plan"
)
"""The link of a value on the board of an experiment, to the plan."""
MONITOR_ROW_LINK = data_link(
    "Verdict in words, on AB Monitor's page", f"{_MONITOR}/experiments/${{__value.raw:percentencode}}"
)
"""The link of a table cell whose value is the name of an experiment."""
MONITOR_PATHS: Final = {
    EXPERIMENTS: "/",
    EXPERIMENT: "/experiments/${experiment:percentencode}",
    PIPELINE: "/service",
}
"""Unique id of a board → path of the page of AB Monitor about the same."""


def alert_annotation(selector: str) -> JSON:
    """Return annotations of the times at which alerts with the labels of `selector` fire.

    New versions of Grafana read `target`, old versions read `expr` and `step`.
    """
    annotation = _annotation("Alerts", f'ALERTS{{alertstate="firing", {selector}}}', "red", "{{alertname}}")
    return {**annotation, "textFormat": "{{variant}} {{topic}} {{instance}}", "tagKeys": "severity"}


def milestone_annotations(selector: str) -> list[JSON]:
    """Return annotations of experiment starts, changes of intended shares, changes of verdicts, and deployments.

    Deployments are Grafana's own annotations with the tag `deployment`, to be written by the deployment process.
    """
    start = f"abmonitor_experiment_start_timestamp_seconds{{{selector}}} * 1000"
    share, state = f"abmonitor_intended_share{{{selector}}}", f"abmonitor_verdict{{{selector}}} == 1"
    return [
        {**_annotation("Start", start, "blue", "start of {{experiment}}"), "useValueForTime": True},
        _annotation("Shares", f"{share} != {share} offset 1m", "purple", "share of {{variant}} changed"),
        _annotation(
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


def _annotation(name: str, expr: str, color: str, title: str) -> JSON:
    expr = of_chosen_system(expr)
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


def build_board(
    uid: str,
    title: str,
    description: str,
    *,
    monitor_url: str,
    choices: Sequence[JSON],
    sections: Sequence[tuple[str, Sequence[JSON]]],
    annotations: Sequence[JSON],
    time_from: str = "now-1h",
) -> JSON:
    """Return a board whose time range begins at `time_from`, with a menu of links to all boards.

    Another link leads to the page of AB Monitor about the same; `monitor_url` is the address of AB Monitor.
    The first variables of the board choose the data source and the system; `choices` are further ones. Queries are
    written as if there was one system.
    """
    panels = lay_out(sections)
    for target in [target for panel in panels for target in panel.get("targets", [])]:
        target["expr"] = of_chosen_system(target["expr"])
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
    page = {
        "type": "link",
        "title": "Open in AB Monitor",
        "url": f"{_MONITOR}{MONITOR_PATHS[uid]}",
        "tooltip": "Verdicts in words, charts and plans",
        "icon": "external link",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": False,
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
        "links": [page, menu],
        "annotations": {"list": list(annotations)},
        "refresh": "30s",
        "time": {"from": time_from, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "templating": {"list": [datasource_variable(), *system_variables(), *choices, monitor_variable(monitor_url)]},
        "panels": panels,
    }
