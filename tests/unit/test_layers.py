"""The layers of docs/architecture.md: imports point only to the own layer or the layers above; the core does no I/O."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "monitor"
LAYERS = [
    "__init__", "errors", "clock", "days", "config", "events", "metrics", "engine", "stats", "analysis", "state",
    "decoding", "sources", "pipeline", "offline", "simulation", "export", "notify", "web", "app", "cli", "__main__",
]  # fmt: skip
"""From the data that comes in to the commands of the user; each layer may import from the layers before it."""
CORE = {"events", "metrics", "engine", "stats", "analysis"}
IO_MODULES = {
    "asyncio", "http", "importlib", "kafka", "logging", "os", "prometheus_client", "random", "redis", "secrets",
    "socket", "subprocess", "sys", "threading", "time", "urllib",
}  # fmt: skip
CLOCK_CALLS = {"now", "today", "utcnow"}
IO_CALLS = {"__import__", "input", "open", "print"}
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "sys.argv", "sys.orig_argv"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    """Return the name of the layer that a module belongs to: its package, or the module itself at the root."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Return (module, imported name) of every import; the name is empty for `import module`."""
    return tuple(_find_imports(path))


def _find_imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


def attributes(path: Path) -> Iterator[str]:
    """Yield the attributes of plain names that a module uses, as `name.attribute`."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def imported_layer(module: str, name: str) -> str:
    """Return the layer that an import from this project refers to."""
    if module == "monitor":
        return name if name in LAYERS else "__init__"
    return module.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_layers_above(path: Path) -> None:
    """The order is that of the data: settings and events first, commands last."""
    for module, name in imports(path):
        if module.split(".")[0] == "monitor":
            other = imported_layer(module, name)
            assert LAYERS.index(other) <= LAYERS.index(layer(path)), f"{path} imports {module}.{name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_other_packages_are_imported_through_their_public_interface(path: Path) -> None:
    """`from monitor.stats import decide_verdict`, never `from monitor.stats.decision import decide_verdict`."""
    for module, name in imports(path):
        if module.startswith("monitor.") and imported_layer(module, name) != layer(path):
            assert module.count(".") == 1, f"{path} imports {name} from {module}"
            interface = PACKAGE / module.split(".")[1] / "__init__.py"
            if interface.exists():
                exported = {exported_name for _, exported_name in imports(interface)}
                assert name in exported, f"{path} imports {name}, which {interface} does not export"


@pytest.mark.parametrize("path", [path for path in MODULES if layer(path) in CORE], ids=lambda path: path.stem)
def test_the_core_does_no_input_or_output(path: Path) -> None:
    """The core uses no clock, no log, no network and no files."""
    nodes = list(ast.walk(syntax_tree(path)))
    assert {module.split(".")[0] for module, _ in imports(path)} & IO_MODULES == set()
    assert {node.attr for node in nodes if isinstance(node, ast.Attribute)} & CLOCK_CALLS == set()
    assert {node.id for node in nodes if isinstance(node, ast.Name)} & IO_CALLS == set()


def test_only_the_command_line_reads_the_environment() -> None:
    """Modules of all other layers get their settings as arguments."""
    readers = {
        layer(path)
        for path in MODULES
        if {f"{module}.{name}" for module, name in imports(path)} & ENVIRONMENT or {*attributes(path)} & ENVIRONMENT
    }
    assert readers == {"cli"}


def test_every_file_name_occurs_once() -> None:
    """A file name alone says which module is meant, in a traceback as in a sentence."""
    counts = Counter(path.name for path in PACKAGE.rglob("*") if path.suffix in {".py", ".lua", ".html"})
    assert [name for name, count in counts.items() if count > 1 and name != "__init__.py"] == []
