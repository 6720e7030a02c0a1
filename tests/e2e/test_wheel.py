"""The wheel as the image has it: built from what the image is built from, compiled, run by nobody in particular."""

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
from monitor.simulation.simulator import default_config, generate, w1

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
    """Return what a command prints; its complaints are the failure."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Yield a directory that every user may look into."""
    with tempfile.TemporaryDirectory(prefix="abm-wheel-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    """Return the wheel, compiled from a copy of the files that .dockerignore lets through."""
    source = place / "source"
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
        place / "wheels",
        source,
        ABMONITOR_NATIVE="1",
        MYPYC_OPT_LEVEL="0",
    )
    (found,) = (place / "wheels").iterdir()
    return found


@pytest.fixture(scope="module")
def environment(place: Path, wheel: Path) -> Path:
    """Return an environment of its own with the wheel; the dependencies are those of the tests."""
    path = place / "environment"
    venv.create(path, with_pip=False, symlinks=True)
    pip = (sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--python", path / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return path


def as_in_the_image(environment: Path, *command: str | Path, **environ: str) -> str:
    """Return what a command prints as a user without rights whose installation is read-only."""
    before = ("unshare", "--mount", "sh", "-c", AS_IN_THE_IMAGE, environment) if os.geteuid() == 0 else ()
    return run(*before, *command, PYTHONDONTWRITEBYTECODE="1", **environ)


def test_what_is_to_be_compiled_is_in_it(wheel: Path) -> None:
    """It is for this platform, and has each compiled module and what they share."""
    names = ZipFile(wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert not wheel.name.endswith("none-any.whl")
    modules = [Path(module).with_suffix("") for module in MODULES]
    assert [module for module in modules if f"monitor/{module}{suffix}" not in names] == []
    assert f"monitor/native__mypyc{suffix}" in names
    assert {name.split("/")[0] for name in names} == {"monitor", f"ab_monitor-{__version__}.dist-info"}


def test_it_does_its_work_without_rights(environment: Path, place: Path) -> None:
    """It says its version, runs compiled, and replays events into a store of its own; its own files it cannot write."""
    scenario = replace(w1(), responses=500, students=50)
    config, events, store = place / "config.toml", place / "events.jsonl", place / "store"
    config.write_text(default_config(scenario))
    events.write_bytes(b"\n".join(event.payload for event in generate(scenario)) + b"\n")
    store.mkdir()
    if os.geteuid() == 0:
        os.chown(store, int(USER), int(USER))
    python, program = environment / "bin" / "python", environment / "bin" / "ab-monitor"
    assert __version__ in as_in_the_image(environment, program, "--version")
    where = as_in_the_image(
        environment, python, "-Ic", "from monitor.engine import accumulator; print(accumulator.__file__)"
    ).strip()
    assert where.startswith(str(environment))
    assert where.endswith(".so")
    own = {"ABMONITOR_STORE_URL": f"embedded:{store}", "HOME": str(store)}
    as_in_the_image(environment, program, "replay", "--config", config, events, **own)
    held = json.loads(as_in_the_image(environment, program, "status", "--config", config, "--json", **own))
    variants = held["experiments"][scenario.experiment]["variants"].values()
    assert sum(variant["responses"] for variant in variants) == scenario.responses
    if os.geteuid() == 0:
        said = as_in_the_image(environment, "sh", "-c", f"id -u; touch {environment}/own 2>&1 || true")
        assert said.startswith(f"{USER}\n")
        assert "Read-only file system" in said
