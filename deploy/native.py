"""Compiles the package monitor/engine to C extensions with mypyc.

    python deploy/native.py        needs a C compiler and Python's headers; without them nothing is compiled

Without compiled modules everything works, but the worker takes about three times as long. Hatchling runs the same
compilation when a wheel is built with ABMONITOR_NATIVE=1; the wheel is then for one platform only.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "monitor" / "engine"
MODULES = sorted(f"engine/{path.name}" for path in PACKAGE.glob("[!_]*.py"))

_FLAGS = ["-fno-semantic-interposition", "-fvisibility=hidden", "-ffp-contract=off"]
"""For gcc and clang: calls within the library are direct, and products are rounded before an addition (no FMA)."""


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds compiled modules to the wheel if ABMONITOR_NATIVE=1."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the package, and mark the wheel as specific to a platform."""
        del version
        if os.environ.get("ABMONITOR_NATIVE") == "1":
            compile_package(Path(self.root))
            build_data["artifacts"].append("monitor/**/*.so")
            build_data["infer_tag"] = True
            build_data["pure_python"] = False


def compile_package(root: Path) -> None:
    """Compile the modules in place; raises SystemExit if the compiler fails."""
    from mypyc.build import mypycify  # noqa: PLC0415  a heavy import, and not installed where nothing is compiled
    from setuptools.dist import Distribution  # noqa: PLC0415

    os.chdir(root)
    for extension_file in extension_files(root):
        extension_file.unlink()
    extensions = mypycify(
        ["--config-file=", "--ignore-missing-imports", *(f"monitor/{module}" for module in MODULES)],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        debug_level="0",
        group_name="monitor.native",
        target_dir=".cache/native",
    )
    if sys.platform.startswith("linux"):
        for extension in extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *_FLAGS]
    command: Any = Distribution({"name": "ab-monitor", "ext_modules": extensions}).get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = command.build_lib = ".cache/native"
    command.ensure_finalized()
    command.run()
    shutil.rmtree(".cache/native")  # the generated C
    for extension_file in extension_files(root):
        # The build does not write unchanged files; a new time shows that they are not older than their sources.
        extension_file.touch()


def extension_files(root: Path) -> list[Path]:
    """Return the compiled files for the running version of Python."""
    return list((root / "monitor").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))


def main() -> int:
    """Compile in place; without compiler or headers, delete compiled files and print the reason."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not (shutil.which(compiler) and headers.exists()):
        for extension_file in extension_files(ROOT):
            extension_file.unlink()
        print(
            f"no {compiler} or no {headers}: not compiled, the worker takes about three times as long", file=sys.stderr
        )
        return 0
    compile_package(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
