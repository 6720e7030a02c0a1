"""The HTTP server with page, metrics and JSON API, and the HTML reports.

- `server`, `http_connections`: uvicorn in a background thread, with limits of connections and times
- `routes`, `pages`: the Starlette application, and what all pages share
- `list_page`, `experiment_page`, `plan_page`, `service_page`, `glossary`: the content of the pages
- `experiment_view`, `experiment_report`: what the page and the report of an experiment share; the report file
- `chart_specs`, `experiment_charts`: Vega-Lite specifications; the macro `chart` of `templates/charts.html` writes them
- `evaluation_report`: the report on an offline evaluation
- `access`, `reader`, `share_links`: who may read what
- `standalone`: scripts and styles inside of a report, which is a single file
- `templates/`, `static/`: Jinja templates, styles and scripts; `charts.js` is made from `deploy/charts`
"""

from __future__ import annotations

from monitor.web.chart_specs import prepare_charts
from monitor.web.evaluation_report import evaluation_csv, evaluation_tables, render_evaluation_report
from monitor.web.experiment_page import GLOSSARY_PATH, ExperimentPages, glossary_page
from monitor.web.experiment_report import render_experiment_report
from monitor.web.pages import PageContent
from monitor.web.plan_page import plan_page
from monitor.web.routes import HTTP_PATHS, HttpEndpoints
from monitor.web.server import HttpServer
from monitor.web.share_links import DEFAULT_SHARE_DAYS, MAX_SHARE_DAYS, ShareLink, share_path

__all__ = [
    "DEFAULT_SHARE_DAYS",
    "GLOSSARY_PATH",
    "HTTP_PATHS",
    "MAX_SHARE_DAYS",
    "ExperimentPages",
    "HttpEndpoints",
    "HttpServer",
    "PageContent",
    "ShareLink",
    "evaluation_csv",
    "evaluation_tables",
    "glossary_page",
    "plan_page",
    "prepare_charts",
    "render_evaluation_report",
    "render_experiment_report",
    "share_path",
]
