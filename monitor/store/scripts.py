"""The scripts that run within the server."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any


class Scripts:
    """Those of one client; each has its text as `script`, and the digest of that as `sha`."""

    def __init__(self, client: Any) -> None:
        """Register them: none is sent before it is needed."""
        names = ("commit", "history", "register", "state", "sum", "sweep")
        self.commit, self.history, self.register, self.state, self.sum, self.sweep = (
            client.register_script(_text(name)) for name in names
        )


def _text(name: str) -> str:
    """Return a script without comments and indents: the one for commits goes to the server again and again."""
    return re.sub(r"(?m)^\s*(--.*\n)?", "", (files("monitor.store") / f"{name}.lua").read_text())
