"""The variables at the top of a board."""

from __future__ import annotations

import re
from typing import Final

from deploy.alerting.rules import EXPERIMENTS_SUFFIX, SYSTEM
from grafana.panels import DATASOURCE, JSON

REFRESH_ON_TIME_RANGE_CHANGE = 2
SORT_ALPHABETICAL = 1
SORT_NUMERICAL = 3
HIDDEN = 2


SYSTEM_MATCHERS: Final = ", ".join(
    [f'job=~"$job({EXPERIMENTS_SUFFIX})?"', *(f'{name}="${name}"' for name in SYSTEM[1:])]
)
"""The matchers of the chosen system. A variable without values is empty, which matches series without the label."""
_SERIES: Final = re.compile(r"\b((?:abmonitor|process)_\w+|ALERTS)\b(?:\{([^}]*)\})?")
_TITLES: Final = {"cluster": "Cluster", "namespace": "Namespace", "environment": "Environment"}


def of_chosen_system(expr: str) -> str:
    """Return the expression in which every series is one of the chosen system, so that no board mixes systems.

    >>> SYSTEM_MATCHERS in of_chosen_system("max(abmonitor_paused)")
    True
    """
    return _SERIES.sub(lambda found: f"{found[1]}{{{', '.join(filter(None, (found[2], SYSTEM_MATCHERS)))}}}", expr)


def system_variables() -> list[JSON]:
    """Return the variables that choose one of several systems in a Prometheus: the job, and its other labels."""
    chosen = f'job!~".*{EXPERIMENTS_SUFFIX}"'
    variables = [
        label_values_variable("job", "System (job)", f"abmonitor_store_up{{{chosen}}}", "job", all_systems=True)
    ]
    chosen = 'job="$job"'
    for name in SYSTEM[1:]:
        selector = f"abmonitor_store_up{{{chosen}}}"
        variables.append(label_values_variable(name, _TITLES[name], selector, name, all_systems=True))
        chosen += f', {name}="${name}"'
    return variables


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


MONITOR_VARIABLE: Final = "ab_monitor_url"


def monitor_variable(address: str) -> JSON:
    """Return the hidden variable with the address of AB Monitor's pages, for links."""
    return {
        "type": "constant",
        "name": MONITOR_VARIABLE,
        "label": "Address of AB Monitor",
        "query": address,
        "current": {"selected": True, "text": address, "value": address},
        "hide": HIDDEN,
        "skipUrlSync": True,
    }


def query_variables(board: JSON) -> list[JSON]:
    """Return the variables of a board whose values are those of a label, in their order."""
    return [variable for variable in board["templating"]["list"] if variable["type"] == "query"]


def label_values_variable(
    name: str,
    label: str,
    selector: str,
    values_of: str,
    *,
    default: str | None = None,
    sort: int = SORT_ALPHABETICAL,
    all_systems: bool = False,
) -> JSON:
    """Return a variable whose values are those of the label `values_of` in the series of `selector`.

    The initial value is `default` if that value exists, else the first value. Only series of the chosen system count,
    unless `all_systems`.
    """
    if not all_systems:
        selector = of_chosen_system(selector)
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
