"""A client of the HTTP API of Prometheus for the queries of a board."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from grafana.panels import JSON
from grafana.queries import substitute_variables

MAX_POINTS = 240
"""Largest number of points per series of a graph."""


class Series(NamedTuple):
    """A series of a panel; missing values are NaN."""

    ref: str
    name: str
    labels: Mapping[str, str]
    times: npt.NDArray[np.float64]
    """Seconds since 1970."""
    values: npt.NDArray[np.float64]

    @property
    def last(self) -> float:
        """The newest value that is not NaN; NaN without any."""
        defined_values = self.values[~np.isnan(self.values)]
        return float(defined_values[-1]) if len(defined_values) else float("nan")


class Window(NamedTuple):
    """The time range of a board, and the scrape interval of Prometheus."""

    start_s: float
    end_s: float
    scrape_s: float

    @property
    def step_s(self) -> float:
        """Seconds between two points of a graph."""
        return max(self.scrape_s, (self.end_s - self.start_s) / MAX_POINTS)

    @property
    def variables(self) -> dict[str, str]:
        """Grafana's built-in variables; the rate interval is at least four scrape intervals, as in Grafana."""
        rate = max(4 * self.scrape_s, self.step_s + self.scrape_s)
        return {"__range": f"{self.end_s - self.start_s:.0f}s", "__rate_interval": f"{rate:.0f}s"}


class PrometheusClient:
    """A client of the Prometheus server at `url`. Failures are raised as OSError."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def _get(self, path: str, **query: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=30) as reply:  # noqa: S310 the caller's
            return json.load(reply)["data"]["result"]

    def label_values(self, definition: str, window: Window) -> list[str]:
        """Return the sorted values of the variable definition `label_values(selector, label)`.

        Raises ValueError for any other definition.
        """
        parts = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
        if parts is None:
            raise ValueError(f"{definition}: expected label_values(selector, label)")
        series_list = self._get("query", query=parts[1], time=str(window.end_s))
        return sorted({series["metric"][parts[2]] for series in series_list if parts[2] in series["metric"]})

    def query_series(self, target: JSON, values: Mapping[str, str], window: Window) -> list[Series]:
        """Return the series of a target: over the window, or only at the end of the window if the target is instant."""
        expr = substitute_variables(target["expr"], values)
        if target["instant"]:
            results = self._get("query", query=expr, time=str(window.end_s))
        else:
            times = {"start": str(window.start_s), "end": str(window.end_s), "step": str(window.step_s)}
            results = self._get("query_range", query=expr, **times)
        return [self._series(result, target, values, window) for result in results]

    def _series(self, result: JSON, target: JSON, values: Mapping[str, str], window: Window) -> Series:
        labels = result["metric"]
        legend = substitute_variables(target["legendFormat"], values)
        name = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), legend)
        points = [result["value"]] if "value" in result else result["values"]
        if "value" in result:
            times = np.array([window.end_s])
        else:
            times = np.arange(window.start_s, window.end_s + window.step_s / 2, window.step_s)
        indices = np.rint((np.array([float(time) for time, _ in points]) - times[0]) / window.step_s).astype(int)
        samples = np.full(len(times), np.nan)
        samples[indices] = [float(value) for _, value in points]
        return Series(target["refId"], name, labels, times, samples)
