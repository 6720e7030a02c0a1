"""The variables at the top of a board."""

from __future__ import annotations

from grafana.panels import DATASOURCE, JSON

REFRESH_ON_TIME_RANGE_CHANGE = 2
SORT_ALPHABETICAL = 1
SORT_NUMERICAL = 3


def datasource() -> JSON:
    """Return the choice of the Prometheus that is asked; everything else on the board follows it."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
    }


def label_values(
    name: str, label: str, selector: str, of: str, *, default: str | None = None, sort: int = SORT_ALPHABETICAL
) -> JSON:
    """Return a choice among the values that the label `of` has in the series of `selector`.

    `default` is what a first visit shows where it exists; without it, or where it does not, the first value is shown.
    """
    query = {
        "qryType": 1,
        "query": f"label_values({selector}, {of})",
        "refId": "PrometheusVariableQueryEditor-VariableQuery",
    }
    current = {} if default is None else {"current": {"selected": True, "text": default, "value": default}}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": query,
        "refresh": REFRESH_ON_TIME_RANGE_CHANGE,
        "regex": "",
        "sort": sort,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        **current,
    }
