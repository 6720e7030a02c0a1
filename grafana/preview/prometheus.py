"""What a Prometheus answers to the queries of a board."""

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
from grafana.queries import filled_in

POINTS = 240
"""Of a graph, at most."""


class Series(NamedTuple):
    """One series of a panel; `values` are NaN where there is none at that time."""

    ref: str
    name: str
    labels: Mapping[str, str]
    times: npt.NDArray[np.float64]
    """Seconds since 1970."""
    values: npt.NDArray[np.float64]

    @property
    def last(self) -> float:
        """The newest value that there is, NaN if there is none."""
        found = self.values[~np.isnan(self.values)]
        return float(found[-1]) if len(found) else float("nan")


class Window(NamedTuple):
    """The time that a board shows."""

    start_s: float
    end_s: float
    scrape_s: float

    @property
    def step_s(self) -> float:
        """Seconds between two points of a graph."""
        return max(self.scrape_s, (self.end_s - self.start_s) / POINTS)

    @property
    def variables(self) -> dict[str, str]:
        """Grafana's own variables: four scrapes are the least that a rate is taken over."""
        rate = max(4 * self.scrape_s, self.step_s + self.scrape_s)
        return {"__range": f"{self.end_s - self.start_s:.0f}s", "__rate_interval": f"{rate:.0f}s"}


class Prometheus:
    """A Prometheus at an address; its failures are OSErrors."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def _get(self, path: str, **query: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=30) as answer:  # noqa: S310 the caller's
            return json.load(answer)["data"]["result"]

    def offered(self, definition: str, at: Window) -> list[str]:
        """Return what `label_values(selector, label)` offers, sorted; raises ValueError for another definition."""
        parts = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
        if parts is None:
            raise ValueError(f"{definition}: expected label_values(selector, label)")
        found = self._get("query", query=parts[1], time=str(at.end_s))
        return sorted({each["metric"][parts[2]] for each in found})

    def answer(self, target: JSON, values: Mapping[str, str], window: Window) -> list[Series]:
        """Return the series of one query of a panel, in the time of the board or only at its end."""
        expr = filled_in(target["expr"], values)
        if target["instant"]:
            found = self._get("query", query=expr, time=str(window.end_s))
        else:
            times = {"start": str(window.start_s), "end": str(window.end_s), "step": str(window.step_s)}
            found = self._get("query_range", query=expr, **times)
        return [self._series(each, target, values, window) for each in found]

    def _series(self, found: JSON, target: JSON, values: Mapping[str, str], window: Window) -> Series:
        labels = found["metric"]
        legend = filled_in(target["legendFormat"], values)
        name = re.sub(r"{{(\w+)}}", lambda part: labels.get(part[1], ""), legend)
        points = [found["value"]] if "value" in found else found["values"]
        if "value" in found:
            times = np.array([window.end_s])
        else:
            times = np.arange(window.start_s, window.end_s + window.step_s / 2, window.step_s)
        at = np.rint((np.array([float(time) for time, _ in points]) - times[0]) / window.step_s).astype(int)
        full = np.full(len(times), np.nan)
        full[at] = [float(value) for _, value in points]
        return Series(target["refId"], name, labels, times, full)
