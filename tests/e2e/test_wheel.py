"""The wheel of the image: built from the files of the image, compiled, and run by an unprivileged user."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy.native import MODULES
from monitor import __version__
from monitor.simulation.simulator import benchmark_scenario, generate_events, render_example_config

ROOT = Path(__file__).parents[2]
USER = "10001"
AS_IN_THE_IMAGE = (
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    f" && exec setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs"
    ' --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "$@"'
)
"""What root can do: the same user, the same read-only files. It may read all: Python may be in a private directory."""

COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed")


def run(*command: str | Path, **environ: str) -> str:
    """Return the output of a command; on failure, the error contains stdout and stderr."""
    process = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def public_directory() -> Iterator[Path]:
    """Yield a directory that every user may read."""
    with tempfile.TemporaryDirectory(prefix="abm-wheel-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def wheel(public_directory: Path) -> Path:
    """Return the wheel, compiled from a copy of the files that .dockerignore does not exclude."""
    source = public_directory / "source"
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in ROOT.rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        inside = any(fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in allowed)
        if inside and path.is_file() and path.suffix not in {".so", ".pyc"}:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, source / name)
    pip = (sys.executable, "-I", "-m", "pip", "--disable-pip-version-check")
    run(
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        public_directory / "wheels",
        source,
        ABMONITOR_NATIVE="1",
        MYPYC_OPT_LEVEL="0",
    )
    (wheel_path,) = (public_directory / "wheels").iterdir()
    return wheel_path


@pytest.fixture(scope="module")
def environment(public_directory: Path, wheel: Path) -> Path:
    """Return a virtual environment with the wheel and the dependencies of the tests."""
    path = public_directory / "environment"
    venv.create(path, with_pip=False, symlinks=True)
    pip = (sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--python", path / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return path


def as_in_the_image(environment: Path, *command: str | Path, **environ: str) -> str:
    """Return the output of a command of an unprivileged user with a read-only installation."""
    before = ("unshare", "--mount", "sh", "-c", AS_IN_THE_IMAGE, environment) if os.geteuid() == 0 else ()
    return run(*before, *command, PYTHONDONTWRITEBYTECODE="1", **environ)


def test_the_wheel_contains_the_compiled_modules(wheel: Path) -> None:
    """The wheel is for this platform, and has each compiled module and the shared library."""
    names = ZipFile(wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert not wheel.name.endswith("none-any.whl")
    modules = [Path(module).with_suffix("") for module in MODULES]
    assert [module for module in modules if f"monitor/{module}{suffix}" not in names] == []
    assert f"monitor/native__mypyc{suffix}" in names
    assert {"monitor/web/runbook.md", "monitor/web/glossary.md"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"monitor", f"ab_monitor-{__version__}.dist-info"}


def test_an_unprivileged_user_can_run_the_installed_program(environment: Path, public_directory: Path) -> None:
    """The program prints its version, runs compiled, and replays events into a store; the installation is read-only."""
    scenario = replace(benchmark_scenario(), responses=500, students=50)
    config, events, store = (
        public_directory / "config.toml",
        public_directory / "events.jsonl",
        public_directory / "store",
    )
    config.write_text(render_example_config(scenario))
    events.write_bytes(b"\n".join(event.payload for event in generate_events(scenario)) + b"\n")
    store.mkdir()
    if os.geteuid() == 0:
        os.chown(store, int(USER), int(USER))
    python, program = environment / "bin" / "python", environment / "bin" / "ab-monitor"
    assert __version__ in as_in_the_image(environment, program, "--version")
    module_path = as_in_the_image(
        environment, python, "-Ic", "from monitor.engine import accumulator; print(accumulator.__file__)"
    ).strip()
    assert module_path.startswith(str(environment))
    assert module_path.endswith(".so")
    environ = {"ABMONITOR_STORE_URL": f"embedded:{store}", "HOME": str(store)}
    as_in_the_image(environment, program, "replay", "--config", config, events, **environ)
    status = json.loads(as_in_the_image(environment, program, "status", "--config", config, "--json", **environ))
    variants = status["experiments"][scenario.experiment]["variants"].values()
    assert sum(variant["responses"] for variant in variants) == scenario.responses
    if os.geteuid() == 0:
        output = as_in_the_image(environment, "sh", "-c", f"id -u; touch {environment}/own 2>&1 || true")
        assert output.startswith(f"{USER}\n")
        assert "Read-only file system" in output
