"""The command line as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HASHED = {"ABMONITOR_STORE_USER_HASH_KEY": "a key for all stores, so that items have the same names and cells"}
"""For stores that are compared: each makes a key of its own otherwise."""

SERVICE_SECTIONS = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "<name>.responses"
feedback_topic = "<name>.feedback"
dead_letter_topic = "<name>.dead"
group_id = "<name>"
[store]
url = "<store>"
[http]
port = <port>
"""
"""The sections of a service's configuration, with placeholders for `write_config`."""
EXPERIMENT_TABLE = """
[[experiments]]
name = "NAME"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""

_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 60.0


def ab_monitor(
    *arguments: str | Path, stdin: bytes | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=_DEADLINE_S * 3,
        check=False,
        env=_environment(environ),
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_commands(commands: str, directory: Path, environ: Mapping[str, str] | None = None) -> str:
    """Run the `ab-monitor` commands of a page in a shell, in a directory; return their standard output."""
    script = f'set -e\nab-monitor() {{ {sys.executable} -m monitor "$@"; }}\n{commands}'
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S * 3,
        check=False,
        env={**_environment(environ), "PYTHONPATH": str(_ROOT)},
    )
    assert process.returncode == 0, f"{commands}\n{process.stderr}"
    return process.stdout


def _environment(environ: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **(environ or {})}


@contextmanager
def service(
    config: Path, log: Path, *options: str, environ: Mapping[str, str] | None = None, module: str = "monitor"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ab-monitor run`, or what a module makes of it, while the block runs; its log goes to a file."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "run", "--config", str(config), *options],
            stderr=stream,
            stdout=stream,
            env=_environment(environ),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def status(config: Path, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what `status --json` prints."""
    done = ab_monitor("status", "--config", config, "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def get(url: str) -> tuple[int, str]:
    """Return status and body of a page; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def eventually(what: str, condition: Any, *, within_s: float = _DEADLINE_S, every_s: float = 0.1) -> Any:
    """Return the first true value of `condition()`; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(every_s)


def write_config(path: Path, text: str, values: Sequence[tuple[str, str]] = ()) -> Path:
    """Write a configuration file, with placeholders `<name>` replaced."""
    for name, value in values:
        text = text.replace(f"<{name}>", value)
    path.write_text(text)
    return path
