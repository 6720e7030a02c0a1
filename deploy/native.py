"""Compiles the package monitor/engine, which every event goes through, to C extensions with mypyc.

    python deploy/native.py        wants a C compiler and Python's headers; without them everything works, but slower

Hatchling does the same when a wheel is built with ABMONITOR_NATIVE=1: the wheel is then one for this platform.
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
"""For gcc and clang: functions call each other directly, and every product is rounded before it is added to."""


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Makes a wheel with compiled modules, if asked for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is for one platform."""
        del version
        if os.environ.get("ABMONITOR_NATIVE") == "1":
            compile_all(Path(self.root))
            build_data["artifacts"].append("monitor/**/*.so")
            build_data["infer_tag"] = True
            build_data["pure_python"] = False


def compile_all(root: Path) -> None:
    """Compile the modules; raises SystemExit in a line if there is no compiler."""
    from mypyc.build import mypycify  # noqa: PLC0415  heavy, and not there where nobody compiles
    from setuptools.dist import Distribution  # noqa: PLC0415

    os.chdir(root)
    for each in compiled(root):
        each.unlink()
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
    for each in compiled(root):
        # Those whose own part is as it was keep their time otherwise.
        each.touch()


def compiled(root: Path) -> list[Path]:
    """Return what was compiled for this Python."""
    return list((root / "monitor").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))


def main() -> int:
    """Compile in place, or say why not and leave the sources to be interpreted."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not (shutil.which(compiler) and headers.exists()):
        for each in compiled(ROOT):
            each.unlink()
        print(
            f"no {compiler} or no {headers}: not compiled, the worker takes about three times as long", file=sys.stderr
        )
        return 0
    compile_all(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
