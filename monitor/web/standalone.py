"""The parts of an HTML file that works without a network: script and styles of the charts, and a strict policy."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

_STATIC_FOLDER: Final = Path(__file__).with_name("static")


def standalone_context() -> dict[str, Any]:
    """Return the values for a template of a self-contained file: `chart_script`, `chart_styles`, `inline_policy`.

    `inline_policy(styles)` is the Content-Security-Policy that allows only this script and the style element `styles`.
    """
    return {
        "chart_script": static_text("charts.js"),
        "chart_styles": static_text("charts.css"),
        "inline_policy": _inline_policy,
    }


@cache
def static_text(name: str) -> Markup:
    """Return one of our own files as text that is not escaped."""
    return Markup((_STATIC_FOLDER / name).read_text(encoding="utf-8"))  # noqa: S704


def _inline_policy(styles: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash_source(static_text('charts.js'))}; style-src {_hash_source(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _hash_source(text: str) -> str:
    """Return the source expression of an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
