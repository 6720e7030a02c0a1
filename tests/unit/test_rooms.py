"""The rooms of docs/architecture.md: a module imports only from rooms above its own, and the core does no I/O."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [
    "errors", "clock", "config", "events", "ranking", "identity", "attribution", "aggregates", "evaluation", "summary",
    "store", "ingest", "export", "service", "demo", "simulate", "cli", "__main__",
]  # fmt: skip
CORE = {"events", "ranking", "identity", "attribution", "aggregates", "evaluation", "summary"}
OUTSIDE = {"time", "logging", "os", "sys", "socket", "redis", "kafka", "prometheus_client", "threading", "secrets"}
MODULES = sorted(
    path for path in (ROOT / "monitor").rglob("*.py") if path.name != "__init__.py" or path.parent.name != "monitor"
)


def room(path: Path) -> str:
    """Return the room that a module is in."""
    return path.relative_to(ROOT / "monitor").parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names of the modules that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_above(path: Path) -> None:
    """Events come in at the top and leave as numbers at the bottom."""
    own = ROOMS.index(room(path))
    for name in imports(path):
        if name.startswith("monitor."):
            other = name.split(".")[1]
            if other == "__version__":
                continue
            assert ROOMS.index(other) <= own, f"{path} imports {name}"


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) in CORE], ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    """No clock, no log, no network."""
    assert {name.split(".")[0] for name in imports(path)} & OUTSIDE == set()
    assert ".now(" not in path.read_text()


def test_only_the_command_line_reads_the_environment() -> None:
    """Everything else is told."""
    readers = {str(path.relative_to(ROOT)) for path in MODULES if "os.environ" in path.read_text()}
    assert readers == {"monitor/cli.py", "monitor/simulate.py"}


def test_no_module_grows_beyond_400_lines() -> None:
    """A module that does has two subjects."""
    assert [path.name for path in MODULES if len(path.read_text().splitlines()) > 400] == []
