"""Build the image with buildah, run it as deploy/compose.yaml runs it, and see whether the boards are filled.

python -m tests.image [--base IMAGE]

Wants root, buildah, podman, runc and catatonit. Without --base the base is made by debootstrap of Debian's Python,
because the named one needs a registry. The monitor and the simulator are containers with the flags, commands and health
check that the compose file gives them; Kafka, Redis and Prometheus are processes of this machine, Prometheus with the
deployment's configuration.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from grafana.generate import build_boards
from grafana.preview.prometheus import PrometheusClient, Window
from grafana.preview.rendering import choose_variables, query_panels
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually, get

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
BASE, IMAGE = "localhost/ab-monitor-base:trixie", "localhost/ab-monitor:tried"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN = "python3,python3-dev,python3-pip,python3-venv,ca-certificates"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
LOOKS = """
import os
print("user", os.getuid(), "group", os.getgid())
said = open("/proc/self/status").read().splitlines()
print(*[" ".join(line.split()) for line in said if line.startswith(("CapEff", "NoNewPrivs", "Seccomp:"))])
for path in ("/own", "/opt/ab-monitor/own", "/etc/ab-monitor/own"):
    try:
        open(path, "w")
    except OSError as error:
        print(error)
from monitor.engine import accumulator
print(accumulator.__file__)
"""
SETTLES_S = 90
"""After a minute, the documentation says, the boards are filled."""


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(*command: str | Path) -> str:
    """Return what a command prints; ends the program with its last words if it fails."""
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


class Engine:
    """Buildah and podman with a storage of their own."""

    def __init__(self, directory: Path) -> None:
        self._place = ("--root", directory / "storage", "--runroot", directory / "run", "--storage-driver", "vfs")
        self._directory = directory

    def base(self) -> str:
        """Make a base like the named one: `python` and `pip` on the path, headers for the compiler."""
        root = self._directory / "base"
        run("debootstrap", "--variant=minbase", f"--include={DEBIAN}", "trixie", root, "http://deb.debian.org/debian")
        run("chroot", root, "python3", "-m", "venv", "/usr/local/python")
        # What this machine trusts: packages may come through a proxy of its own.
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        made = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", made, f"{root}/", "/")
        self.buildah("config", "--env", "PATH=/usr/local/python/bin:/usr/local/bin:/usr/bin:/bin", made)
        self.buildah("commit", "--quiet", "--rm", made, BASE)
        return BASE

    def buildah(self, *arguments: str | Path) -> str:
        """Return what buildah prints."""
        return run("buildah", *self._place, *arguments)

    def podman(self, *arguments: str | Path) -> str:
        """Return what podman prints."""
        return run("podman", *self._place, "--runtime", "runc", "--cgroup-manager", "cgroupfs", *arguments)

    def build(self, base: str) -> None:
        """Build the image from the repository."""
        given = ("--isolation", "chroot", "--format", "docker", "--build-arg", f"PYTHON_IMAGE={base}")
        self.buildah("bud", *given, "--file", DEPLOY / "Dockerfile", "--tag", IMAGE, ROOT)

    def flags(self, service: str) -> list[str]:
        """Return how the compose file runs a service, as podman's flags."""
        told = SERVICES[service]
        found = ["--network", "host", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        found += ["--memory", told["mem_limit"], *(["--read-only"] if told["read_only"] else [])]
        found += ["--init"] if told["init"] else []
        found += [f"--cap-drop={each}" for each in told["cap_drop"]]
        found += [f"--security-opt={each.replace(':true', '')}" for each in told["security_opt"]]
        found += [f"--tmpfs={each}" for each in told["tmpfs"]]
        mounts = [each.split(":", 1) for each in told["volumes"]]
        return found + [f"--volume={(DEPLOY / source).resolve()}:{rest}" for source, rest in mounts]

    @contextmanager
    def started(self, service: str, environ: dict[str, str]) -> Iterator[str]:
        """Run a service of the compose file in the background; yields its container's name."""
        name = f"ab-monitor-tried-{service}"
        told = ["--no-healthcheck", *(f"--env={key}={value}" for key, value in environ.items())]
        command = SERVICES[service]["command"]
        self.podman("run", "--detach", "--name", name, *self.flags(service), *told, IMAGE, *command)
        try:
            yield name
        finally:
            begun = time.monotonic()
            self.podman("stop", "--time", "30", name)
            code = self.podman("inspect", "--format", "{{.State.ExitCode}}", name)
            say(f"{service}: stopped within {time.monotonic() - begun:.1f} s, exit code {code}")
            self.podman("rm", "--force", name)


def filled(prometheus: PrometheusServer, since_s: float) -> dict[str, list[str]]:
    """Return the panels of each board that show nothing."""
    source, window = PrometheusClient(prometheus.url), Window(since_s, time.time(), 5)
    empty = {}
    for name, board in build_boards().items():
        answers = query_panels(board, source, choose_variables(board, source, window), window)
        empty[name] = [title for title, found in answers.items() if not found]
    return empty


def scraping(port: int) -> dict[str, Any]:
    """Return the deployment's configuration of Prometheus with the monitor's address here."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load(text.replace("monitor:9464", f"127.0.0.1:{port}"))
    del config["alerting"]
    return {**config, "rule_files": [str(DEPLOY / "prometheus" / "rules" / "*.yml")]}


def deployed(engine: Engine) -> None:
    """Run the monitor and the simulator beside a real Kafka, Redis and Prometheus, and say which panels are empty."""
    port = free_port()
    with KafkaBroker() as kafka, RedisServer(redis_binary()) as store:
        (topics,) = re.findall(r"for topic in ([^;]+);", SERVICES["topics"]["command"][-1])
        for topic in topics.split():
            kafka.create_topic(topic, 4)
        environ = {
            "ABMONITOR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "ABMONITOR_STORE_URL": store.url,
            "ABMONITOR_HTTP_PORT": str(port),
        }
        begun = time.time()
        with engine.started("monitor", environ) as monitor:
            eventually("the monitor is ready", lambda: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
            say(f"monitor: ready after {time.time() - begun:.1f} s")
            with engine.started("simulator", environ) as simulator, PrometheusServer(scraping(port)) as prometheus:
                time.sleep(SETTLES_S)
                say(f"empty after {SETTLES_S} s: {filled(prometheus, begun)}")
                for name in (monitor, simulator):
                    say(f"{name}: changed files {engine.podman('diff', name).splitlines()}")
                _, *check = SERVICES["monitor"]["healthcheck"]["test"]
                engine.podman("exec", monitor, *[each.replace(":9464/", f":{port}/") for each in check])
                say("monitor: its health check ends with 0")


def main() -> None:
    """Build, look at the image from inside, run the deployment."""
    parser = argparse.ArgumentParser(prog="python -m tests.image", description="Build the image and run it.")
    parser.add_argument("--base", help="the base image (default: one of Debian's packages)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="abm-image-") as name:
        engine = Engine(Path(name))
        begun = time.monotonic()
        engine.build(options.base or engine.base())
        say(f"built in {time.monotonic() - begun:.0f} s, {engine.podman('images', '--format', '{{.Size}}', IMAGE)}")
        say(engine.podman("run", "--rm", *engine.flags("monitor"), IMAGE, "--version"))
        say(engine.podman("run", "--rm", *engine.flags("monitor"), "--entrypoint", "python", IMAGE, "-c", LOOKS))
        deployed(engine)


if __name__ == "__main__":
    main()
