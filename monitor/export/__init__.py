"""What others see: Prometheus families, HTTP, the page, the table in a terminal."""

from __future__ import annotations

from monitor.export.collectors import CATALOGUE, ExperimentsCollector
from monitor.export.endpoints import PATHS, Endpoints
from monitor.export.http import HttpServer
from monitor.export.terminal import EXIT_CODES, print_json, render, render_verdicts, simple_table, to_stdout

__all__ = [
    "CATALOGUE",
    "EXIT_CODES",
    "PATHS",
    "Endpoints",
    "ExperimentsCollector",
    "HttpServer",
    "print_json",
    "render",
    "render_verdicts",
    "simple_table",
    "to_stdout",
]
