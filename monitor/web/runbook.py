"""The page /runbook: docs/runbook.md as HTML, to which the alerts link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.requests import Request
from starlette.responses import Response

from monitor.web.pages import PAGE_TEMPLATES

RUNBOOK_STYLES: Final = ("/static/page.css", "/static/runbook.css")
"""The style sheets of the page."""
STATIC_PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages without a script."""
_SECTION_LEVEL: Final = "h2"
_HEADING_TOKENS: Final = 3
"""A heading is parsed into its begin, its text and its end."""


def runbook_response(request: Request) -> Response:
    """Return the page. It needs neither the store nor Kafka."""
    headers = {"Content-Security-Policy": STATIC_PAGE_POLICY}
    introduction, sections = _rendered_runbook()
    context = {"introduction": introduction, "sections": sections, "styles": RUNBOOK_STYLES}
    return PAGE_TEMPLATES.TemplateResponse(request, "runbook.html", context, 200, headers)


@cache
def _rendered_runbook() -> tuple[str, dict[str, str]]:
    return render_runbook(_runbook_markdown())


def _runbook_markdown() -> str:
    packaged = files("monitor.web").joinpath("runbook.md")
    in_checkout = Path(__file__).parents[2] / "docs" / "runbook.md"
    return (packaged if packaged.is_file() else in_checkout).read_text(encoding="utf-8")


def render_runbook(markdown: str) -> tuple[str, dict[str, str]]:
    r"""Return the HTML before the first section, and that of each section by its heading, which is its anchor, too.

    Only sections are served, so a link to another page of the documentation becomes the path of that page.

    >>> render_runbook("# Runbook\nAct.\n## down\nSee [limits](configuration.md#limits).")[1]
    {'down': '<p>See limits (<code>docs/configuration.md</code>).</p>\n'}
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    starts = [
        index for index, token in enumerate(tokens) if token.type == "heading_open" and token.tag == _SECTION_LEVEL
    ]

    def html(part: Sequence[Token]) -> str:
        for token in part:
            if token.children is not None:
                token.children = _with_served_links(token.children)
        return str(parser.renderer.render(part, parser.options, {}))

    # The title of the page is in the template.
    introduction = html(tokens[_HEADING_TOKENS : starts[0]])
    ends = [*starts[1:], len(tokens)]
    return introduction, {
        tokens[start + 1].content: html(tokens[start + _HEADING_TOKENS : end])
        for start, end in zip(starts, ends, strict=True)
    }


def _with_served_links(tokens: Sequence[Token]) -> list[Token]:
    """Return the inline tokens, in which a link to another page is its text followed by the path of the page."""
    served: list[Token] = []
    page = ""
    for token in tokens:
        if token.type == "link_open" and not str(token.attrs["href"]).startswith("#"):
            page = f"docs/{str(token.attrs['href']).partition('#')[0]}"
        elif token.type == "link_close" and page:
            served += [
                Token("text", "", 0, content=" ("),
                Token("code_inline", "code", 0, content=page),
                Token("text", "", 0, content=")"),
            ]
            page = ""
        else:
            served.append(token)
    return served
