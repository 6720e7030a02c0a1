"""The display of values as configured in a panel: overrides, colours, texts, units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from grafana.panels import JSON

TEXT = "#ccccdc"
NAMED_COLORS = {
    "green": "#73bf69",
    "light-green": "#96d98d",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "purple": "#b877d9",
    "text": TEXT,
}
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#70dbed")

_TIMES = ((1, "s"), (60, "min"), (3_600, "hours"), (86_400, "days"), (604_800, "weeks"))
_BYTES = tuple((1024**power, f"{prefix}B") for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti")))
_SHORT = tuple((1000**power, suffix) for power, suffix in enumerate(("", "K", "Mil", "Bil", "Tri")))
_SMALL_TIMES = ((1e-6, "µs"), (1e-3, "ms"))
_WHOLE_FROM = 1000
_TIME_STEPS = (2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_SCALES = {"s": _TIMES, "bytes": _BYTES, "short": _SHORT, "eps": _SHORT}
_SUFFIXES = {"eps": " eps", "d": " days"}


def matches_override(matcher: JSON, ref: str, name: str) -> bool:
    """Return whether a matcher selects the series with a name and `ref`. Raises KeyError for an unknown matcher."""
    kind, pattern = matcher["id"], matcher["options"]
    if kind == "byRegexp":
        return re.search(pattern.strip("/"), name) is not None
    return bool({"byName": name, "byFrameRefID": ref}[kind] == pattern)


def series_settings(panel: JSON, ref: str, name: str) -> JSON:
    """Return the settings of a series: the defaults of the panel, updated by the matching overrides in order."""
    config: JSON = dict(panel["fieldConfig"]["defaults"])
    config.update({f"custom.{key}": value for key, value in config.pop("custom", {}).items()})
    for override in panel["fieldConfig"]["overrides"]:
        if matches_override(override["matcher"], ref, name):
            config.update({setting["id"]: setting["value"] for setting in override["properties"]})
    return config


def hex_color(color: str) -> str:
    """Return the hexadecimal code of a named colour; other colours are returned unchanged."""
    return NAMED_COLORS.get(color, color)


def palette_color(name: str) -> str:
    """Return a colour of the palette that depends only on the name."""
    return PALETTE[crc32(name.encode()) % len(PALETTE)]


def step_color(steps: Sequence[JSON], value: float) -> str:
    """Return the colour of the highest threshold step not above the value."""
    colors = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return hex_color(colors[-1])


def value_mapping(config: JSON, value: float) -> JSON | None:
    """Return the text and colour to which the settings map a value; None without a mapping."""
    for mapping in config.get("mappings", ()):
        display: JSON | None = mapping["options"].get(f"{value:g}")
        if display is not None:
            return display
    return None


def series_color(config: JSON, name: str, value: float) -> str:
    """Return the colour of a series by the newest value, `value`."""
    mapped = value_mapping(config, value)
    if mapped is not None:
        return hex_color(mapped["color"])
    mode = config["color"]["mode"]
    if mode == "fixed":
        return hex_color(config["color"]["fixedColor"])
    return step_color(config["thresholds"]["steps"], value) if mode == "thresholds" else palette_color(name)


def format_value(config: JSON, value: float) -> str:
    """Return a value as text: the mapped text, or the number with the unit."""
    mapped = value_mapping(config, value)
    return (
        str(mapped["text"])
        if mapped is not None
        else format_number(config.get("unit", "short"), value, config.get("decimals"))
    )


def format_number(unit: str, value: float, decimals: int | None = None) -> str:
    """Return a number with a unit of Grafana.

    >>> number("s", 90), number("s", 0.0123), number("percentunit", 0.256, 1), number("bytes", 3 * 2**20)
    ('1.5 min', '12.3 ms', '25.6 %', '3.0 MiB')
    >>> number("short", 12_345), number("short", 0.12345, 3), number("d", 4.2, 0), number("eps", 1500)
    ('12.3 K', '0.123', '4 days', '1.5 K eps')
    """
    if math.isnan(value):
        return "–"
    if unit == "percentunit":
        return f"{_digits(100 * value, decimals)} %"
    scale = _SCALES.get(unit, ((1, ""),))
    if unit == "s" and 0 < abs(value) < 1:
        scale = _SMALL_TIMES
    size, symbol = scale[0]
    for (_, _), (next_size, next_symbol) in pairwise(scale):
        if abs(value) >= next_size:
            size, symbol = next_size, next_symbol
    if size != 1:
        decimals = 1 if decimals is None or decimals == 0 else decimals
    return f"{_digits(value / size, decimals)} {symbol}".rstrip() + _SUFFIXES.get(unit, "")


def tick_spacing(unit: str, extent: float) -> float:
    """Return a round distance between ticks that divides `extent` into about four parts.

    >>> spacing("short", 1.1), spacing("s", 3.0), spacing("s", 86_400), spacing("bytes", 90 * 2**20) / 2**20
    (0.5, 1.0, 21600, 32.0)
    """
    min_spacing = extent / 4
    if unit == "bytes":
        return float(2 ** math.ceil(math.log2(min_spacing)))
    if unit == "s" and min_spacing > 1:
        return next((step for step in _TIME_STEPS if step >= min_spacing), math.ceil(min_spacing / 86_400) * 86_400)
    power = 10.0 ** math.floor(math.log10(min_spacing))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= min_spacing * (1 - 1e-9))


def _digits(value: float, decimals: int | None) -> str:
    if decimals is None:
        return f"{value:.3g}" if abs(value) < _WHOLE_FROM else f"{value:.0f}"
    return f"{value:.{decimals}f}"
