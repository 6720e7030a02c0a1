"""The variables at the top of a board."""

from __future__ import annotations

from grafana.panels import DATASOURCE, JSON

REFRESH_ON_TIME_RANGE_CHANGE = 2
SORT_ALPHABETICAL = 1
SORT_NUMERICAL = 3


def datasource_variable() -> JSON:
    """Return the variable that selects the Prometheus data source of the board."""
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


def label_values_variable(
    name: str, label: str, selector: str, values_of: str, *, default: str | None = None, sort: int = SORT_ALPHABETICAL
) -> JSON:
    """Return a variable whose values are those of the label `values_of` in the series of `selector`.

    The initial value is `default` if that value exists, else the first value.
    """
    query = {
        "qryType": 1,
        "query": f"label_values({selector}, {values_of})",
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
