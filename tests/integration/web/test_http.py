"""The endpoints of a running demo, for people, for Prometheus and for strangers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from monitor.export import CATALOGUE
from tests.servers.chromium import dom, screenshot
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool, scraping
from tests.support.command import eventually, get
from tests.support.http_client import ask


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a demo that has run through its week and stays."""
    chosen = free_port()
    log = (tmp_path_factory.mktemp("demo") / "log").open("w")
    demo = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "monitor",
            "demo",
            "--speed",
            "200000",
            "--responses",
            "8000",
            "--port",
            str(chosen),
            "--stay",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        eventually("the demo has feedback", lambda: '"rating"' in get(f"http://127.0.0.1:{chosen}/api/experiments")[1])
        yield chosen
    finally:
        demo.terminate()
        demo.wait(20)
        log.close()


class TestPaths:
    """What answers, and that nothing else does."""

    @pytest.mark.parametrize(
        "path", ["/", "/metrics", "/metrics/experiments", "/-/healthy", "/-/ready", "/api/experiments"]
    )
    def test_each_path_answers_get_and_head(self, port: int, path: str) -> None:
        """HEAD has the headers and no body."""
        assert ask(port, path).status == 200
        head = ask(port, path, "HEAD")
        assert (head.status, head.body) == (200, b"")

    @pytest.mark.parametrize("path", ["/metricsx", "/metrics/", "/favicon.ico", "/../etc/passwd", "/api", "/%00"])
    def test_anything_else_is_404(self, port: int, path: str) -> None:
        """Nothing is guessed."""
        assert ask(port, path).status == 404

    def test_other_methods_and_bodies_are_refused(self, port: int) -> None:
        """405 says what is allowed; a body is too large whatever its length."""
        refused = ask(port, "/", "POST")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
        assert ask(port, "/", "GET", b"x" * 10).status == 413

    def test_one_experiment(self, port: int) -> None:
        """The object of status --json; an unknown name is 404."""
        answer = ask(port, "/api/experiments/ranker-v2")
        assert set(json.loads(answer.body)["variants"]) == {"control", "treatment"}
        assert ask(port, "/api/experiments/nothing").status == 404

    def test_a_verdict(self, port: int) -> None:
        """The object of `verdict --json`; the rest of the path is no name."""
        found = json.loads(ask(port, "/api/experiments/ranker-v2/verdict").body)
        assert (found["experiment"], set(found["verdict"])) == ("ranker-v2", {"treatment"})
        early = json.loads(ask(port, "/api/experiments/ranker-v2/verdict?as_of=2020-01-01T00:00:00Z").body)
        assert early["verdict"]["treatment"]["state"] == "insufficient_data"
        for path in ("nothing/verdict", "ranker-v2/verdicts", "ranker-v2/verdict/verdict", "/verdict"):
            assert ask(port, f"/api/experiments/{path}").status == 404

    def test_as_of(self, port: int) -> None:
        """Before the first event no decayed mean is defined; a time that cannot be read is 400."""
        found = json.loads(ask(port, "/api/experiments/ranker-v2?as_of=2020-01-01T00:00:00Z").body)
        decayed = found["variants"]["control"]["metrics"]["dcg@5"]["decayed"]["24h"]
        assert decayed["mean"] is None
        assert ask(port, "/api/experiments?as_of=noon").status == 400


class TestPrometheus:
    """Both endpoints under a real Prometheus and promtool."""

    @pytest.mark.parametrize("path", ["/metrics", "/metrics/experiments"])
    def test_promtool_finds_nothing_to_say(self, port: int, path: str) -> None:
        """`promtool check metrics` is silent, but for days: verdicts are a matter of days, and their gauge says so."""
        done = promtool("check", "metrics", stdin=get(f"http://127.0.0.1:{port}{path}")[1])
        days = 'abmonitor_days_to_resolve use base unit "seconds" instead of "days"'
        assert done.stdout == ""
        assert set(done.stderr.splitlines()) <= {days}

    def test_no_nan_and_nothing_outside_the_catalogue(self, port: int) -> None:
        """Every name and label is in the catalogue that boards are checked against."""
        known = {each.name: set(each.labels) for each in CATALOGUE}
        for path in ("/metrics", "/metrics/experiments"):
            for line in get(f"http://127.0.0.1:{port}{path}")[1].splitlines():
                if not line.startswith("abmonitor"):
                    continue
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                if name.endswith("_created"):
                    continue
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                labels = set(re.findall(r'(\w+)="', line)) - {"le"}
                assert labels == known[name if name in known else base], line
                assert "NaN" not in line

    def test_a_real_prometheus_scrapes_both(self, port: int) -> None:
        """Both targets are up and a mean can be asked for."""
        targets = [f"127.0.0.1:{port}/metrics", f"127.0.0.1:{port}/metrics/experiments"]
        with PrometheusServer(scraping(targets)) as server:
            eventually("both targets are up", lambda: [each["health"] for each in server.targets()] == ["up", "up"])
            found = server.query('abmonitor_metric_mean{metric="dcg@5", decay="24h"}')
            assert {each["metric"]["variant"] for each in found} == {"control", "treatment"}
            assert all(1 < float(each["value"][1]) < 3 for each in found)
            assert server.query("abmonitor_store_up == 1")

    def test_the_documented_configuration_is_one(self, tmp_path: Path) -> None:
        """Promtool accepts what docs/http.md says about TLS and the token, files included."""
        text = (Path(__file__).parents[3] / "docs/http.md").read_text()
        (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ab-monitor-ca.pem"))
        (tmp_path / "ab-monitor-token").write_text("a-token-of-some-length")
        config = tmp_path / "prometheus.yml"
        config.write_text(block.replace("/etc/prometheus", str(tmp_path)))
        done = promtool("check", "config", str(config))
        assert done.returncode == 0, done.stdout + done.stderr


class TestPage:
    """The page for people, in a browser."""

    def test_shows_the_variants_and_survives_its_own_policy(self, port: int) -> None:
        """Style and script are allowed by their hashes; the table is there."""
        document = dom(f"http://127.0.0.1:{port}/")
        for word in ("ranker-v2", "control", "treatment", "dcg@5", "rated share", "decay 24h"):
            assert word in document
        policy = ask(port, "/").headers["Content-Security-Policy"]
        assert "unsafe" not in policy

    @pytest.mark.parametrize(("width", "height"), [(1400, 1000), (400, 1400)])
    def test_renders_narrow_and_wide(self, port: int, width: int, height: int, tmp_path: Path) -> None:
        """A screenshot comes out, and is more than an empty page."""
        picture = tmp_path / "page.png"
        screenshot(f"http://127.0.0.1:{port}/", picture, width, height)
        assert picture.stat().st_size > 20_000
