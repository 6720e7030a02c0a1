"""The system's Chromium, driven by Playwright, and checks of pages by axe-core."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from tests.servers.process import need
from tests.support.fetched import fetched, run

ColorScheme: TypeAlias = Literal["light", "dark"]
_AXE_PACKAGE = Path(__file__).parents[1] / "schemas" / "axe"
_SERIOUS_IMPACTS = frozenset({"serious", "critical"})
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic")


@contextmanager
def browser_page(
    *,
    width: int = 1280,
    height: int = 900,
    color_scheme: ColorScheme = "light",
    javascript: bool = True,
    headers: Mapping[str, str] | None = None,
    timezone: str = "UTC",
) -> Iterator[Page]:
    """Yield an empty page. At the end, errors of scripts and violations of the Content-Security-Policy fail the test.

    `page.goto(url)` opens a page; `page.emulate_media(media="print")` shows the page as printed. `headers` are sent
    with every request.
    """
    problems: list[str] = []

    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=need("chromium", "chromium"), args=list(_FLAGS))
        try:
            page = chromium.new_page(
                viewport={"width": width, "height": height},
                color_scheme=color_scheme,
                java_script_enabled=javascript,
                extra_http_headers=dict(headers or {}),
                timezone_id=timezone,
            )
            page.on("console", note_message)
            page.on("pageerror", lambda error: problems.append(str(error)))
            yield page
        finally:
            chromium.close()
    assert not problems, "\n".join(problems)


def serious_problems(page: Page) -> list[str]:
    """Return the serious and critical problems that axe-core finds in the page, each with its first element."""
    page.evaluate(_axe_source())
    violations: list[dict[str, Any]] = page.evaluate("axe.run().then((results) => results.violations)")
    return [
        f"{violation['id']}: {violation['help']}: {violation['nodes'][0]['html']}"
        for violation in violations
        if violation["impact"] in _SERIOUS_IMPACTS
    ]


def overflow_px(page: Page) -> int:
    """Return by how many pixels the page is wider than the window; a reader would have to scroll sideways."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


def _axe_source() -> str:
    """Return the source of axe-core, fetched from npm on the first run; the lock file pins its hash."""
    digest = hashlib.sha256((_AXE_PACKAGE / "package-lock.json").read_bytes()).hexdigest()[:12]
    npm = need("npm", "npm")

    def fetch(folder: Path) -> None:
        shutil.copytree(_AXE_PACKAGE, folder, dirs_exist_ok=True)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", within=folder)

    return (fetched(f"axe-{digest}", fetch) / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
