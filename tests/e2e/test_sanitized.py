"""What reads bytes that anybody may have written reads none that are not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deploy.native import SOURCES
from monitor.events import scanning
from tests.servers.process import need

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(scanning.__file__.endswith(".py"), reason="nothing is compiled here: no C compiler"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is loaded before Python is for Linux"),
]
_TESTS = ("tests/property/test_scanning.py", "tests/property/test_hashing.py")
_CHECKED = ("-g", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")


def test_what_is_written_in_c_is_right_about_memory(tmp_path: Path) -> None:
    """Its own tests once more, with every access checked, and with objects in memory that the checks know."""
    for part in ("monitor", "deploy", "tests", "pyproject.toml"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / part, tmp_path / part)
    compiler = need("gcc", "gcc")
    suffix, headers = sysconfig.get_config_var("EXT_SUFFIX"), sysconfig.get_path("include")
    for source in SOURCES:
        path = tmp_path / "monitor" / source
        target = path.with_name(path.stem + suffix)
        subprocess.run([compiler, *_CHECKED, "-fno-sanitize-recover", f"-I{headers}", path, "-o", target], check=True)
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout
    environment = os.environ | {
        "LD_PRELOAD": library.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", *_TESTS]
    told = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout[-5000:] + told.stderr[-5000:]
    assert "skipped" not in told.stdout
