"""The deployment is wired together: what one file names, another one provides."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.alerting.rules import Addresses
from monitor.config import load_settings
from tests.servers.process import need

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CONFIG_IN_CONTAINER = "/etc/ab-monitor/config.toml"

JSON = dict[str, Any]


def read_yaml(path: Path) -> JSON:
    """Return the content of a YAML file."""
    content: JSON = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def compose() -> JSON:
    """Return the compose file as it is after its merge keys are applied."""
    return read_yaml(DEPLOY / "compose.yaml")


@pytest.fixture(scope="module")
def services(compose: JSON) -> dict[str, JSON]:
    """Return the services of the compose file by name."""
    services_by_name: dict[str, JSON] = compose["services"]
    return services_by_name


@pytest.fixture(scope="module")
def config() -> JSON:
    """Return the monitor's configuration file as TOML."""
    return tomllib.loads((DEPLOY / "config.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scrape_configs() -> list[JSON]:
    """Return the jobs of the Prometheus configuration."""
    jobs: list[JSON] = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    return jobs


@pytest.fixture(scope="module")
def instructions() -> list[list[str]]:
    """Return the Dockerfile's instructions as words, continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def mounts(service: JSON) -> dict[str, str]:
    """Return the mounted sources by target, in the short syntax source:target[:mode]."""
    split = (mount.split(":") for mount in service.get("volumes", []))
    return {parts[1]: parts[0] for parts in split}


class TestServices:
    """What every container of the compose file has to have."""

    def test_every_mounted_file_exists(self, services: dict[str, JSON]) -> None:
        """A missing source would be created as an empty directory by the engine."""
        sources = {source for service in services.values() for source in mounts(service).values()}
        files = [source for source in sources if source.startswith(".")]
        assert files
        assert [source for source in files if not (DEPLOY / source).exists()] == []

    def test_every_named_volume_is_declared_and_used(self, compose: JSON, services: dict[str, JSON]) -> None:
        """Data survive `down`, and no volume is left over."""
        sources = {source for service in services.values() for source in mounts(service).values()}
        assert {source for source in sources if not source.startswith(".")} == set(compose["volumes"])

    def test_service_dependencies_exist_and_have_conditions(self, services: dict[str, JSON]) -> None:
        """Nothing starts before what it needs is healthy, or has finished its work."""
        for name, service in services.items():
            for needed, gate in service.get("depends_on", {}).items():
                target = services[needed]
                if gate["condition"] == "service_healthy":
                    assert "test" in target["healthcheck"], (name, needed)
                else:
                    assert gate["condition"] == "service_completed_successfully", (name, needed)
                    assert target["restart"] == "no", (name, needed)

    def test_containers_are_hardened(self, services: dict[str, JSON]) -> None:
        """Read-only, no capabilities, no new privileges, bounded memory and logs."""
        for name, service in services.items():
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
            assert service["mem_limit"], name
            assert "max-size" in service["logging"]["options"], name

    def test_ports_are_published_on_the_loopback_address_only(self, services: dict[str, JSON]) -> None:
        """Nothing of this deployment is protected by a password."""
        ports = [port for service in services.values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)
        assert len({port.split(":")[1] for port in ports}) == len(ports)

    def test_images_are_pinned_to_a_version(self, services: dict[str, JSON]) -> None:
        """The same file gives the same system tomorrow."""
        foreign = {service["image"] for service in services.values() if "build" not in service}
        assert foreign
        assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in foreign), foreign


class TestWiring:
    """Names and ports agree between the files."""

    def test_the_configuration_is_valid(self) -> None:
        """The monitor accepts the file that it is given."""
        settings = load_settings(DEPLOY / "config.toml", {})
        assert [experiment.name for experiment in settings.experiments] == ["ranker-v2"]

    def test_the_configuration_is_mounted_at_the_path_of_the_commands(self, services: dict[str, JSON]) -> None:
        """The monitor and the simulator read the same file."""
        for name in ("monitor", "simulator"):
            assert CONFIG_IN_CONTAINER in services[name]["command"]
            assert mounts(services[name])[CONFIG_IN_CONTAINER] == "./config.toml"

    def test_the_variables_of_the_runbook_reach_the_service(self, services: dict[str, JSON]) -> None:
        """A variable of the shell reaches a container only if the file passes it on."""
        runbook = (DEPLOY.parent / "docs" / "runbook.md").read_text(encoding="utf-8")
        variables = set(re.findall(r"ABMONITOR_[A-Z_]+", runbook))
        assert variables == set(services["monitor"]["environment"])

    def test_kafka_is_reached_by_the_name_it_advertises(self, services: dict[str, JSON], config: JSON) -> None:
        """A client that is told another address would fail after its first request."""
        environment = services["kafka"]["environment"]
        advertised = dict(entry.split("://") for entry in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
        listening = dict(entry.split("://") for entry in environment["KAFKA_LISTENERS"].split(","))
        assert config["kafka"]["bootstrap_servers"] == advertised["INTERNAL"]
        assert advertised["INTERNAL"].split(":") == ["kafka", listening["INTERNAL"].removeprefix(":")]
        assert services["kafka"]["ports"] == [
            f"127.0.0.1:{port}:{port}" for port in [listening["HOST"].removeprefix(":")]
        ]

    def test_the_topics_job_creates_the_configured_topics(self, services: dict[str, JSON], config: JSON) -> None:
        """The one-shot job makes exactly the topics of the configuration."""
        script = services["topics"]["command"][-1]
        topic_list = re.search(r"for topic in ([^;]+);", script)
        assert topic_list is not None
        assert set(topic_list[1].split()) == {value for key, value in config["kafka"].items() if key.endswith("_topic")}
        assert config["kafka"]["bootstrap_servers"] in script

    def test_the_store_is_persistent_and_never_evicts(self, services: dict[str, JSON], config: JSON) -> None:
        """The store is the service named in the configuration; it appends to a log on a volume and never evicts."""
        store = urlsplit(config["store"]["url"])
        assert (store.hostname, store.port) == ("valkey", 6379)
        command = services["valkey"]["command"]
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--appendonly"] == "yes"
        assert options["--appendfsync"] == "everysec"
        assert options["--maxmemory-policy"] == "noeviction"
        assert mounts(services["valkey"])["/data"] == "valkey-data"

    def test_both_metrics_endpoints_have_separate_scrape_jobs(
        self, services: dict[str, JSON], config: JSON, scrape_configs: list[JSON]
    ) -> None:
        """Both pages report the state of the store; within one job they would be one series with two values."""
        assert {job["metrics_path"] for job in scrape_configs} == {"/metrics", "/metrics/experiments"}
        assert len({job["job_name"] for job in scrape_configs}) == len(scrape_configs)
        port = config["http"]["port"]
        targets = [target for job in scrape_configs for entry in job["static_configs"] for target in entry["targets"]]
        assert targets == [f"monitor:{port}"] * len(scrape_configs)
        assert services["monitor"]["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert f":{port}/" in services["monitor"]["healthcheck"]["test"][-1]
        assert config["http"]["host"] == "0.0.0.0"  # noqa: S104 - the containers' own network

    def test_prometheus_reads_the_checked_configuration(self, services: dict[str, JSON]) -> None:
        """The directory of the configuration is the one that is mounted."""
        prometheus = services["prometheus"]
        assert "--config.file=/etc/prometheus/prometheus.yml" in prometheus["command"]
        assert mounts(prometheus)["/etc/prometheus"] == "./prometheus"
        targets_by_source = {source: target for target, source in mounts(prometheus).items()}
        assert f"--storage.tsdb.path={targets_by_source['prometheus-data']}" in prometheus["command"]

    def test_alerts_reach_alertmanager_and_have_reachable_links(self, services: dict[str, JSON]) -> None:
        """Rules are read from the mounted directory; addresses are those that a browser on this machine opens."""
        config = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
        (pattern,) = config["rule_files"]
        assert [path.name for path in (DEPLOY / "prometheus").glob(pattern)] == ["ab-monitor.yml"]
        (entry,) = config["alerting"]["alertmanagers"][0]["static_configs"]
        assert entry["targets"] == ["alertmanager:9093"]
        assert services["alertmanager"]["ports"] == ["127.0.0.1:9093:9093"]
        assert "--config.file=/etc/alertmanager/alertmanager.yml" in services["alertmanager"]["command"]
        assert mounts(services["alertmanager"])["/etc/alertmanager"] == "./alertmanager"

        for service in ("prometheus", "alertmanager"):
            port = services[service]["ports"][0].split(":")[1]
            assert f"--web.external-url=http://localhost:{port}" in services[service]["command"]
        targets_by_source = {source: target for target, source in mounts(services["prometheus"]).items()}
        assert f"--web.user-assets={targets_by_source['../docs']}" in services["prometheus"]["command"]
        assert Addresses().runbook == "http://localhost:9464/runbook"
        assert "127.0.0.1:9464:9464" in services["monitor"]["ports"]
        assert services["grafana"]["ports"] == [f"127.0.0.1:{urlsplit(Addresses().grafana).port}:3000"]

    def test_grafana_has_the_provisioned_data_source(self, services: dict[str, JSON]) -> None:
        """The data source is the Prometheus of this deployment and knows its scrape interval."""
        folder = ROOT / "grafana" / "provisioning" / "datasources"
        (source,) = read_yaml(folder / "prometheus.yaml")["datasources"]
        address = urlsplit(source["url"])
        assert address.hostname in services
        assert f"127.0.0.1:{address.port}:{address.port}" in services["prometheus"]["ports"]
        scrape = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["global"]
        assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
        assert (
            mounts(services["grafana"])["/etc/grafana/provisioning/datasources"]
            == "../grafana/provisioning/datasources"
        )

    def test_grafana_has_the_provisioned_boards(self, services: dict[str, JSON]) -> None:
        """The provider looks where the boards are mounted, and the first board is the home page."""
        (provider,) = read_yaml(ROOT / "grafana" / "provisioning" / "dashboards" / "ab-monitor.yaml")["providers"]
        grafana = services["grafana"]
        assert mounts(grafana)[provider["options"]["path"]] == "../grafana/dashboards"
        home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        board = ROOT / "grafana" / "dashboards" / home.removeprefix(provider["options"]["path"]).lstrip("/")
        assert json.loads(board.read_text(encoding="utf-8"))["uid"] == "abmonitor-experiments"


class TestImage:
    """The image is small, reproducible and not root."""

    def test_the_image_runs_as_a_numeric_user(self, instructions: list[list[str]]) -> None:
        """Kubernetes can only verify `runAsNonRoot` for a number."""
        (user,) = [words[1] for words in instructions if words[0] == "USER"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)

    def test_the_image_installs_only_hashed_packages(self, instructions: list[list[str]]) -> None:
        """Dependencies come from the locked file; the package itself brings none."""
        installs = [" ".join(words) for words in instructions if words[0] == "RUN" and '"pip"' in words[1]]
        assert len(installs) == 4
        assert all("--require-hashes" in install or "--no-deps" in install for install in installs)

    def test_the_wheel_is_built_with_the_dependencies_of_the_image(self, instructions: list[list[str]]) -> None:
        """Where the wheel is built, the types that the modules import are installed, in the versions of the image."""
        pip_installs = [words for words in instructions if words[0] == "RUN" and '["pip", "install"' in " ".join(words)]
        named = [
            word
            for words in pip_installs
            for word in words
            if "requirements" in word and word.strip('",]').endswith(".txt")
        ]
        assert [word.strip('",]') for word in named] == ["requirements/fast.txt", "deploy/build-requirements.txt"]
        run, build = (
            dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
            for name in ("requirements/fast.txt", "deploy/build-requirements.txt")
        )
        assert {name: (run[name], build[name]) for name in run.keys() & build.keys() if run[name] != build[name]} == {}

    def test_the_image_needs_no_shell(self, instructions: list[list[str]]) -> None:
        """Every command of the image is in exec form."""
        commands = [words for words in instructions if words[0] in {"RUN", "ENTRYPOINT", "CMD"}]
        assert len(commands) > 2
        assert all(words[1].startswith("[") for words in commands)

    def test_the_ignore_file_admits_exactly_the_copied_files(self, instructions: list[list[str]]) -> None:
        """The ignore file lets through what the image is made from, and nothing else by default."""
        lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        patterns = [line for line in lines if line and not line.startswith("#")]
        assert patterns[0] == "*"
        allowed = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
        copied = [
            source
            for words in instructions
            if words[0] == "COPY" and not words[1].startswith("--from")
            for source in words[1:-1]
        ]
        assert copied
        assert [path for path in copied if not any(fnmatch.fnmatch(path, pattern) for pattern in allowed)] == []
        assert [path for path in allowed if path not in copied] == []


LINTERS = (
    "hadolint deploy/Dockerfile",
    "check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml",
    "promtool check config deploy/prometheus/prometheus.yml",
    "promtool check rules --lint=all --lint-fatal deploy/prometheus/rules/ab-monitor.yml",
    "amtool check-config deploy/alertmanager/alertmanager.yml",
)
PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}


@pytest.mark.parametrize("command", LINTERS)
def test_deployment_files_pass_the_linters_of_their_formats(command: str) -> None:
    """The Dockerfile, the compose file, the rules and all configurations pass the checkers of their formats."""
    linter, *arguments = command.split()
    beside_python = Path(sys.executable).parent / linter
    program = str(beside_python) if beside_python.exists() else need(linter, PACKAGES.get(linter, "–"))
    result = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
