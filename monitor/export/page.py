"""The page at /: the same numbers for a person with a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from monitor.clock import Clock
from monitor.config import DisplaySettings
from monitor.export.presentation import decisions, notes, rows
from monitor.items import Entry
from monitor.summary import Summary, iso

_MOST_ENTRIES: Final = 10
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def template(name: str) -> Template:
    """Return a template that escapes what it is given and refuses what it is not."""
    environment = Environment(
        loader=PackageLoader("monitor.export"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


class Page:
    """Renders the page; `policy` is the Content-Security-Policy that allows just its own style and script."""

    def __init__(self, clock: Clock, display: DisplaySettings) -> None:
        self._clock = clock
        self._display = display
        self._template = template("page.html")
        hashes: dict[str, list[str]] = {"style": [], "script": []}
        for kind, text in _INLINE.findall(self.render(None, ()).decode()):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            hashes[kind].append(f"'sha256-{digest}'")
        self.policy = (
            f"default-src 'none'; style-src {' '.join(hashes['style'])}; script-src {' '.join(hashes['script'])}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def render(self, summary: Summary | None, trouble: Sequence[str]) -> bytes:
        """Return the page; without a summary, what is wrong."""
        now_ms, least = self._clock(), self._display.min_display_students
        experiments = [] if summary is None else list(summary.experiments.values())
        return self._template.render(
            experiments=[
                {
                    "name": each.name,
                    "control": each.control,
                    "variants": [name for name, _ in each.ordered()],
                    "rows": rows(each, now_ms, least),
                    "decisions": decisions(each, least),
                    "notes": notes(each, least),
                    "attention": None if each.attention is None else _first(each.attention),
                    "empty": all(variant.last_event_at_ms is None for variant in each.variants.values()),
                }
                for each in experiments
            ],
            trouble=trouble,
            as_of=None if summary is None else iso(summary.as_of_ms),
            now=iso(now_ms),
        ).encode()


def _first(entries: Sequence[Entry]) -> list[tuple[str, int, str]]:
    """Return the first entries' names, bad answers of today, and priorities."""
    return [(entry.name, entry.today, f"{entry.priority:.3f}") for entry in entries[:_MOST_ENTRIES]]
