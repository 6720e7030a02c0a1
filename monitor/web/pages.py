"""What all HTML pages share: templates, the header, security headers, and the elements of the pages that a page adds.

A page is a function that returns a `PageContent`: the name of a template that extends `base.html`, and its values.
`HttpEndpoints` adds the header and writes the response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from monitor.export import ServiceHealth, format_count, format_percent, format_time
from monitor.web.reader import OPEN_READER, Reader, request_reader

_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_NAVIGATION: Final = (("/", "Experiments"), ("/service", "Service"), ("/glossary", "Glossary"))
"""(address, title) of the pages in the header."""
_TIME_TEXT: Final = re.compile(r"\b\d{1,2} [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC")


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page below the header."""

    template: str
    """Name of a template in `templates/` that extends `base.html`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    file_name: str | None = None
    """The name under which a browser stores the page instead of showing it; None for pages that are shown."""
    experiment: str = ""
    """Name of the experiment that the page is about; `HttpEndpoints` sets it."""


Page: TypeAlias = Callable[[Mapping[str, str]], PageContent]
"""Returns the content of a page for the parameters of a query.

Raises `UsageError` for a wrong parameter, and `DependencyUnavailable`.
"""
ExperimentPage: TypeAlias = Callable[[str, Mapping[str, str]], PageContent]
"""Returns the content of a page about an experiment, from its name and the parameters of a query. Raises as `Page`."""


def time_element(at_ms: int) -> Markup:
    """Return a time in UTC as an HTML element, whose text a script replaces by the time in the reader's zone.

    >>> time_element(1_767_225_660_000)
    Markup('<time datetime="2026-01-01T00:01:00Z">1 Jan 2026, 00:01 UTC</time>')
    """
    timestamp = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(timestamp, format_time(at_ms))


def with_time_elements(text: str) -> Markup:
    """Return a text as HTML in which each time in UTC is a time element.

    >>> with_time_elements("A < B since 1 Jan 2026, 00:01 UTC.")
    Markup('A &lt; B since <time datetime="2026-01-01T00:01:00Z">1 Jan 2026, 00:01 UTC</time>.')
    """
    parts, end = [], 0
    for match in _TIME_TEXT.finditer(text):
        try:
            timestamp = datetime.strptime(match[0], "%d %b %Y, %H:%M UTC").replace(tzinfo=UTC)
        except ValueError:
            continue
        parts += [escape(text[end : match.start()]), time_element(round(timestamp.timestamp()) * 1000)]
        end = match.end()
    return Markup().join([*parts, escape(text[end:])])


def experiment_path(name: str, suffix: str = "") -> str:
    """Return the address of a page about an experiment. The name may contain any characters.

    >>> experiment_path("a/b c", "/plan")
    '/experiments/a%2Fb%20c/plan'
    """
    return f"/experiments/{quote(name, safe='')}{suffix}"


TEMPLATE_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("monitor.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates escape their values; an undefined value is an error."""
TEMPLATE_ENVIRONMENT.filters |= {
    "share": format_percent,
    "thousands": format_count,
    "time": time_element,
    "with_times": with_time_elements,
    "experiment_path": experiment_path,
}
PAGE_TEMPLATES: Final = Jinja2Templates(env=TEMPLATE_ENVIRONMENT)


def load_template(name: str) -> Template:
    """Return a template of the folder `templates`."""
    return TEMPLATE_ENVIRONMENT.get_template(name)


def render_page(content: PageContent, header: Mapping[str, Any], path: str = "/", reader: Reader = OPEN_READER) -> str:
    """Return a page for a reader as HTML; `header` is a result of `page_header`, `path` the address."""
    return load_template(content.template).render({**content.values, **header, "path": path, "reader": reader})


def page_response(request: Request, content: PageContent, header: Mapping[str, Any]) -> Response:
    """Return the response to a request of a page, with a Content-Security-Policy; `header`: see `page_header`."""
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY}
    if content.file_name is not None:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(content.file_name, safe='')}"
    return Response(
        render_page(content, header, request.url.path, request_reader(request)), content.status, headers, "text/html"
    )


def page_header(health: ServiceHealth | None, readiness_problems: Sequence[str], now_ms: int) -> dict[str, Any]:
    """Return the values for `base.html`: the reasons why the process is not ready, whether anything is wrong, the time.

    `health` is None if the store is out of reach.
    """
    return {
        "navigation": _NAVIGATION,
        "readiness_problems": readiness_problems,
        "needs_attention": health is not None and bool(health.conditions()),
        "now_ms": now_ms,
    }


def problem_page(title: str, text: str, status: int) -> PageContent:
    """Return the content of a page that only names a problem."""
    return PageContent("problem.html", {"title": title, "text": text}, status)
