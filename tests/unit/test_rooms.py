"""The rooms of docs/architecture.md: a module imports only from rooms above its own, and the core does no I/O."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [
    "errors", "clock", "config", "events", "ranking", "aggregates", "traffic",
    "decay", "agreement", "items", "engine",
    "drift", "evaluation", "inference", "terms", "verdicts", "retracing", "summary",
    "history", "store", "ingest", "export", "service", "check", "audit", "rebuild", "dead_letters",
    "offline", "demo", "simulate", "cli", "__main__", "__init__",
]  # fmt: skip
CORE = {
    "events", "ranking", "aggregates", "traffic", "decay", "agreement", "items", "engine",
    "drift", "evaluation", "inference", "terms", "verdicts", "retracing", "summary",
    "history",
}  # fmt: skip
OUTSIDE = {
    "asyncio", "http", "importlib", "kafka", "logging", "os", "prometheus_client", "random", "redis", "secrets",
    "socket", "subprocess", "sys", "threading", "time", "urllib",
}  # fmt: skip
CLOCKS = {"now", "today", "utcnow"}
DOORS = {"__import__", "input", "open", "print"}
SURROUNDINGS = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "sys.argv", "sys.orig_argv"}
MODULES = sorted((ROOT / "monitor").rglob("*.py"))


def room(path: Path) -> str:
    """Return the room that a module is in."""
    return path.relative_to(ROOT / "monitor").parts[0].removesuffix(".py")


def tree(path: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """Yield the full dotted names of what a module imports, relative imports resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            origin = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)


def attributes(path: Path) -> Iterator[str]:
    """Yield the attributes of plain names that a module uses, as `name.attribute`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


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
    """No clock, no log, no network, no files."""
    nodes = list(ast.walk(tree(path)))
    assert {name.split(".")[0] for name in imports(path)} & OUTSIDE == set()
    assert {node.attr for node in nodes if isinstance(node, ast.Attribute)} & CLOCKS == set()
    assert {node.id for node in nodes if isinstance(node, ast.Name)} & DOORS == set()


def test_only_the_command_line_reads_the_environment() -> None:
    """Everything else is told; `simulate` is a command of its own."""
    readers = {str(path.relative_to(ROOT)) for path in MODULES if {*imports(path), *attributes(path)} & SURROUNDINGS}
    assert readers == {"monitor/cli.py", "monitor/simulate.py"}


def test_no_module_grows_beyond_600_lines() -> None:
    """A module that does has two subjects."""
    assert [path.name for path in MODULES if len(path.read_text().splitlines()) > 600] == []
