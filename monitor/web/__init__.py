"""The HTTP server: the page, the JSON API, health, and the HTML reports."""

from __future__ import annotations

from monitor.web.evaluation_report import evaluation_csv, evaluation_tables, render_evaluation_report
from monitor.web.experiment_report import render_experiment_report
from monitor.web.routes import PATHS, Endpoints
from monitor.web.server import HttpServer

__all__ = [
    "PATHS",
    "Endpoints",
    "HttpServer",
    "evaluation_csv",
    "evaluation_tables",
    "render_evaluation_report",
    "render_experiment_report",
]
