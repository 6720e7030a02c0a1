"""The page at /: the same numbers for a person with a browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from monitor.analysis import Summary, iso
from monitor.config import DisplaySettings
from monitor.export import count, decisions, notes, rows, share, unmatched_feedback

_MOST_ENTRIES: Final = 10
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ENVIRONMENT: Final = Environment(
    loader=PackageLoader("monitor.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates escape their values and refuse undefined ones."""
ENVIRONMENT.filters |= {"share": share, "thousands": count}
TEMPLATES: Final = Jinja2Templates(env=ENVIRONMENT)


def template(name: str) -> Template:
    """Return a template of this package."""
    return ENVIRONMENT.get_template(name)


def page_response(request: Request, context: dict[str, Any], status: int = 200) -> Response:
    """Return the page with the values of `page_context`."""
    headers = {"Content-Security-Policy": _POLICY}
    return TEMPLATES.TemplateResponse(request, "page.html", context, status, headers)


def page_context(
    summary: Summary | None, trouble: Sequence[str], display: DisplaySettings, now_ms: int
) -> dict[str, Any]:
    """Return the values of the template: of each experiment, and why the process is not ready."""
    least = display.min_display_students
    experiments = [] if summary is None else list(summary.experiments.values())
    return {
        "experiments": [
            {
                "name": experiment.name,
                "control": experiment.control,
                "variants": [name for name, _ in experiment.ordered()],
                "rows": rows(experiment, now_ms, least),
                "decisions": decisions(experiment, least),
                "notes": notes(experiment, least),
                "attention": None if experiment.attention is None else experiment.attention[:_MOST_ENTRIES],
                "empty": all(variant.last_event_at_ms is None for variant in experiment.variants.values()),
            }
            for experiment in experiments
        ],
        "unmatched_feedback": None if summary is None else unmatched_feedback(summary),
        "trouble": trouble,
        "as_of": None if summary is None else iso(summary.as_of_ms),
        "now": iso(now_ms),
    }
