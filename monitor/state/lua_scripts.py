"""The Lua scripts that run in the Redis server."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any


class Scripts:
    """The Lua scripts of one client, as redis-py scripts: `script` is the text, `sha` its digest."""

    def __init__(self, client: Any) -> None:
        """Register the scripts with the client, which sends each to the server at its first call."""
        self.append_snapshot = client.register_script(_text("append_snapshot"))
        self.commit = client.register_script(_text("commit"))
        self.compact = client.register_script(_text("compact"))
        self.expire = client.register_script(_text("expire"))
        self.read_state = client.register_script(_text("read_state"))
        self.register = client.register_script(_text("register"))


def _text(name: str) -> str:
    """Return a script without comments and indents: the one for commits goes to the server again and again."""
    return re.sub(r"(?m)^\s*(--.*\n)?", "", (files("monitor.state") / "lua" / f"{name}.lua").read_text())
