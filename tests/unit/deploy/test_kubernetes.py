"""The manifests are valid, agree with each other and with the rest, and take away what the monitor does not need."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from deploy.alerting.generate import RULES
from deploy.alerting.rules import Addresses
from deploy.kubernetes.generate import BASE, outdated, rendered
from grafana.generate import boards
from monitor import __version__
from monitor.config import load_settings
from tests.support.crds import faults, published
from tests.support.kustomize import built, documents

ROOT = Path(__file__).parents[3]
OVERLAYS = {path.name: path for path in sorted((ROOT / "deploy" / "kubernetes" / "overlays").iterdir())}
VERSIONS = ("1.27", "1.37")
"""The oldest and the newest Kubernetes that the manifests are checked for."""
SNIPPETS = re.findall(
    r"^```yaml\n(.*?)^```", (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
LONGEST_ANNOTATION = 256 * 1024
OLDEST_KUSTOMIZE = 5
KUSTOMIZE = "v5.5.0"

JSON = dict[str, Any]


@pytest.fixture(scope="module", params=OVERLAYS)
def resources(request: pytest.FixtureRequest) -> list[JSON]:
    """Return what an overlay makes."""
    return built(OVERLAYS[request.param])


def one(resources: list[JSON], kind: str) -> JSON:
    """Return the only resource of a kind."""
    (found,) = [each for each in resources if each["kind"] == kind]
    return found


def workload(resources: list[JSON]) -> JSON:
    """Return what runs the pods."""
    (found,) = [each for each in resources if each["kind"] in {"Deployment", "StatefulSet"}]
    return found


def pod(resources: list[JSON]) -> JSON:
    """Return the specification of the pods."""
    found: JSON = workload(resources)["spec"]["template"]["spec"]
    return found


def container(resources: list[JSON]) -> JSON:
    """Return the only container of a pod."""
    (found,) = pod(resources)["containers"]
    return dict(found)


def config(resources: list[JSON]) -> str:
    """Return the text of the configuration that the pods mount."""
    (name,) = [each["configMap"]["name"] for each in pod(resources)["volumes"] if "configMap" in each]
    (found,) = [each for each in resources if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name]
    return str(found["data"]["config.toml"])


class TestGeneratedFiles:
    """Rules, boards and configuration in deploy/kubernetes/base."""

    def test_are_what_the_code_makes(self) -> None:
        """They are changed where they come from."""
        assert outdated(Addresses()) == []

    def test_the_rules_are_those_of_prometheus(self) -> None:
        """An installation in Kubernetes warns of the same things."""
        (rule,) = documents(BASE / "prometheusrule.yaml")
        assert rule["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))

    def test_every_board_is_in_a_map_that_can_be_applied(self, resources: list[JSON]) -> None:
        """Grafana's sidecar finds each by its label; `kubectl apply` can note each in an annotation."""
        maps = [each for each in resources if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
        found = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
        assert found == {f"ab-monitor-{name}": board for name, board in boards().items()}
        assert max(len(json.dumps(each)) for each in maps) < LONGEST_ANNOTATION

    def test_no_other_board_is_there(self) -> None:
        """A board that no code makes would never be updated."""
        assert {f"boards/{path.name}" for path in (BASE / "boards").iterdir()} < set(rendered(Addresses()))

    def test_the_command_checks_and_takes_other_addresses(self) -> None:
        """Continuous integration runs `--check`; with addresses of one's own the files are others."""
        command = [sys.executable, "-m", "deploy.kubernetes.generate", "--check"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        other = [*command, "--grafana", "https://grafana.example.org/"]
        done = subprocess.run(other, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "prometheusrule.yaml is not what the code makes: run python -m deploy.kubernetes.generate"
        ]


class TestSchemas:
    """Every resource is one that a server would take, and has no field that it would drop."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_of_kubernetes(self, resources: list[JSON], version: str) -> None:
        """Strictly: unknown fields are errors."""
        own = [each for each in resources if (each["apiVersion"], each["kind"]) not in published()]
        assert {each["kind"] for each in own} > {"Service", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap"}
        for each in own:
            kubernetes_validate.validate(each, version, strict=True)

    def test_of_the_prometheus_operator(self, resources: list[JSON]) -> None:
        """Its own published schemas."""
        others = [each for each in resources if (each["apiVersion"], each["kind"]) in published()]
        assert sorted(each["kind"] for each in others) == ["PrometheusRule", "ServiceMonitor"]
        assert [fault for each in others for fault in faults(each)] == []

    def test_a_misspelt_field_is_noticed(self, resources: list[JSON]) -> None:
        """The checks see what they are there for."""
        scraped = json.loads(json.dumps(one(resources, "ServiceMonitor")))
        scraped["spec"]["endpoints"][0]["pth"] = "/metrics"
        assert len(faults(scraped)) == 1
        service = {**one(resources, "Service"), "sepc": {}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(service, VERSIONS[0], strict=True)

    def test_names_are_unique(self, resources: list[JSON]) -> None:
        """Two resources of one kind and name would be one."""
        names = [(each["kind"], each["metadata"]["name"]) for each in resources]
        assert len(set(names)) == len(names)


class TestPods:
    """What runs, and what it may do."""

    def test_may_do_nothing_that_it_does_not_need(self, resources: list[JSON]) -> None:
        """The restricted pod security standard, and a read-only file system."""
        every = pod(resources)["securityContext"]
        assert every["runAsNonRoot"] is True
        assert every["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container(resources)["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert pod(resources)["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(resources))

    def test_runs_as_the_user_of_the_image(self, resources: list[JSON]) -> None:
        """Files of the image belong to nobody else."""
        (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
        every = pod(resources)["securityContext"]
        assert (str(every["runAsUser"]), str(every["runAsGroup"])) == user

    def test_memory_is_bounded(self, resources: list[JSON]) -> None:
        """A leak ends the process and not the node."""
        sizes = container(resources)["resources"]
        assert sizes["limits"]["memory"]
        assert set(sizes["requests"]) == {"cpu", "memory"}

    def test_is_restarted_for_its_own_faults_only(self, resources: list[JSON]) -> None:
        """Kafka and the store come back by themselves; a restart would only add a rebalance."""
        probes = {
            kind: container(resources)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
        }
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/-/healthy",
            "liveness": "/-/healthy",
            "readiness": "/-/ready",
        }
        assert {probe["port"] for probe in probes.values()} == {"http"}

    def test_runs_the_version_of_this_repository(self, resources: list[JSON]) -> None:
        """A fixed tag, in the registry of the overlay."""
        name, tag = container(resources)["image"].rsplit(":", 1)
        assert name == "registry.example.org/ab-monitor"
        assert tag == __version__

    def test_every_volume_is_mounted(self, resources: list[JSON]) -> None:
        """And every mount has its volume."""
        volumes = {each["name"] for each in pod(resources)["volumes"]}
        assert volumes == {each["name"] for each in container(resources)["volumeMounts"]}


class TestWiring:
    """Names, ports and labels agree between the manifests, and with the configuration."""

    def test_the_configuration_is_valid_with_every_secret(self, resources: list[JSON], tmp_path: Path) -> None:
        """The variables of the pods are keys of the configuration; secrets are optional."""
        path = tmp_path / "config.toml"
        path.write_text(config(resources), encoding="utf-8")
        sources = {each["name"]: each["valueFrom"] for each in container(resources)["env"]}
        settings = load_settings(path, dict.fromkeys(sources, "0123456789abcdef"))
        assert settings.store.password == settings.kafka.sasl_password == settings.http.token == "0123456789abcdef"
        secrets = {name: source["secretKeyRef"] for name, source in sources.items() if "secretKeyRef" in source}
        assert all(source["optional"] and source["name"] == "ab-monitor" for source in secrets.values())
        assert len({source["key"] for source in secrets.values()}) == len(secrets) == 4

    def test_the_configuration_is_mounted_where_the_command_looks(self, resources: list[JSON]) -> None:
        """The whole map is a directory."""
        (mount,) = [each for each in container(resources)["volumeMounts"] if each["name"] == "config"]
        assert container(resources)["args"][-1] == f"{mount['mountPath']}/config.toml"

    def test_the_port_is_the_same_everywhere(self, resources: list[JSON]) -> None:
        """Others refer to it by its name."""
        http = tomllib.loads(config(resources))["http"]
        assert container(resources)["ports"] == [{"name": "http", "containerPort": http["port"]}]
        assert one(resources, "Service")["spec"]["ports"] == [
            {"name": "http", "port": http["port"], "targetPort": "http"}
        ]
        assert http["host"] == "0.0.0.0"  # noqa: S104 - inside of the pod

    def test_selectors_find_the_pods(self, resources: list[JSON]) -> None:
        """Workload, service, budget and policy mean the same pods, and the monitor of services means the service."""
        labels = workload(resources)["spec"]["template"]["metadata"]["labels"]
        selectors = [
            workload(resources)["spec"]["selector"]["matchLabels"],
            one(resources, "Service")["spec"]["selector"],
            one(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
            one(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        ]
        assert all(selector and selector.items() <= labels.items() for selector in selectors)
        scraped = one(resources, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
        assert scraped.items() <= one(resources, "Service")["metadata"]["labels"].items()

    def test_both_pages_are_scraped_by_jobs_of_their_own(self, resources: list[JSON]) -> None:
        """The same jobs and paths as in the Prometheus configuration beside the compose file."""
        jobs = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
        endpoints = one(resources, "ServiceMonitor")["spec"]["endpoints"]
        found = {
            entry["replacement"]: each["path"]
            for each in endpoints
            for entry in each["relabelings"]
            if entry["targetLabel"] == "job"
        }
        assert found == {job["job_name"]: job["metrics_path"] for job in jobs}
        assert {each["port"] for each in endpoints} == {"http"}

    def test_a_replica_is_called_by_its_name(self, resources: list[JSON]) -> None:
        """Its address is another one after each restart, and with it all its series."""
        for endpoint in one(resources, "ServiceMonitor")["spec"]["endpoints"]:
            (relabeling,) = [each for each in endpoint["relabelings"] if each["targetLabel"] == "instance"]
            assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_name"]

    def test_the_policy_lets_through_what_is_configured(self, resources: list[JSON]) -> None:
        """Prometheus in; names, Kafka and the store out; nothing else."""
        policy = one(resources, "NetworkPolicy")["spec"]
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert [each["ports"] for each in policy["ingress"]] == [[{"port": "http", "protocol": "TCP"}]]
        assert all(each["from"] for each in policy["ingress"])
        settings = tomllib.loads(config(resources))
        kafka = {int(server.rpartition(":")[2]) for server in settings["kafka"]["bootstrap_servers"].split(",")}
        out = {(each["port"], each["protocol"]) for rule in policy["egress"] for each in rule["ports"]}
        needed = {(port, "TCP") for port in kafka | {urlsplit(settings["store"]["url"]).port}}
        assert out == needed | {(53, "UDP"), (53, "TCP")}

    def test_a_node_can_always_be_drained(self, resources: list[JSON]) -> None:
        """One replica at a time, and those that wait for the store do not count."""
        budget = one(resources, "PodDisruptionBudget")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


class TestOverlays:
    """What each of them is for."""

    def test_there_are_these(self) -> None:
        """Each is documented."""
        documentation = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
        assert set(OVERLAYS) == {"single", "replicated"}
        assert all(f"deploy/kubernetes/overlays/{name}" in documentation for name in OVERLAYS)

    def test_single_is_one_replica(self) -> None:
        """It ends before the next one starts: two configurations at once would skip events of a new experiment."""
        spec = workload(built(OVERLAYS["single"]))["spec"]
        assert spec["replicas"] == 1
        assert spec["strategy"] == {"type": "Recreate"}

    def test_replicas_are_static_members_by_the_names_of_their_pods(self) -> None:
        """Which only a StatefulSet gives again to the pod that follows."""
        resources = built(OVERLAYS["replicated"])
        assert workload(resources)["kind"] == "StatefulSet"
        spec = workload(resources)["spec"]
        assert spec["replicas"] > 1
        assert spec["serviceName"] == one(resources, "Service")["metadata"]["name"]
        (member,) = [
            each["valueFrom"]
            for each in container(resources)["env"]
            if each["name"] == "ABMONITOR_KAFKA_GROUP_INSTANCE_ID"
        ]
        assert member == {"fieldRef": {"fieldPath": "metadata.name"}}

    def test_a_rollout_that_goes_wrong_can_be_taken_back(self) -> None:
        """With ordered pods the broken one would be waited for."""
        assert workload(built(OVERLAYS["replicated"]))["spec"]["podManagementPolicy"] == "Parallel"


@functools.cache
def kustomize() -> list[str]:
    """Return the command that builds, of whichever program has it; skips where there is none, and no Go to make one."""
    own = ROOT / ".cache" / f"kustomize-{KUSTOMIZE}"
    for program, command in (("kustomize", ["build"]), ("kubectl", ["kustomize"]), (str(own / "kustomize"), ["build"])):
        if shutil.which(program) is None:
            continue
        asked = [program, "version", *(["--client"] if program == "kubectl" else [])]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        version = re.search(r"(?:Kustomize Version: )?v(\d+)\.\d+\.\d+\s*$", said)
        if version is not None and int(version[1]) >= OLDEST_KUSTOMIZE:
            return [program, *command]
    if shutil.which("go") is None:
        pytest.skip(f"there is no kustomize {OLDEST_KUSTOMIZE} (kubectl 1.27 or newer has it), and no Go to build it")
    source = f"sigs.k8s.io/kustomize/kustomize/v5@{KUSTOMIZE}"
    built_it = subprocess.run(
        ["go", "install", source], env={**os.environ, "GOBIN": str(own)}, capture_output=True, text=True, check=False
    )
    if built_it.returncode:
        pytest.skip(f"Go cannot build kustomize here: {built_it.stderr.strip().splitlines()[-1]}")
    return [str(own / "kustomize"), "build"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_itself_makes_the_same(name: str) -> None:
    """But for the hash at the end of a generated name."""
    done = subprocess.run([*kustomize(), str(OVERLAYS[name])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def in_order(resources: list[JSON]) -> list[JSON]:
        text = re.sub(r"ab-monitor-config-[a-z0-9]{10}", "ab-monitor-config", json.dumps(resources))
        return sorted(json.loads(text), key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert in_order(list(yaml.safe_load_all(done.stdout))) == in_order(built(OVERLAYS[name]))


class TestDocumentedOverlays:
    """The overlays that docs/deployment.md proposes, as kustomize builds them."""

    @pytest.fixture
    def mine(self, tmp_path: Path) -> Path:
        """Return a directory with a configuration of one's own beside a copy of the repository's manifests."""
        shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "ab-monitor" / "deploy" / "kubernetes")
        (tmp_path / "config.toml").write_text("# mine\n", encoding="utf-8")
        return tmp_path

    @staticmethod
    def build(directory: Path, text: str) -> list[JSON]:
        """Return what kustomize makes of a kustomization."""
        (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
        done = subprocess.run([*kustomize(), str(directory)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    def test_of_ones_own(self, mine: Path) -> None:
        """Another configuration, image, label and port of Kafka."""
        (snippet,) = [each for each in SNIPPETS if "behavior: replace" in each]
        resources = self.build(mine, snippet)
        assert config(resources) == "# mine\n"
        assert container(resources)["image"].startswith("registry.internal/")
        assert all(each["metadata"]["labels"]["release"] for each in resources)
        ports = [each["ports"] for each in one(resources, "NetworkPolicy")["spec"]["egress"]]
        assert [each["port"] for each in ports[-1]] == [9093, 6379]

    def test_without_the_prometheus_operator(self, mine: Path) -> None:
        """Everything else stays."""
        (snippet,) = [each for each in SNIPPETS if "$patch: delete" in each]
        base = "resources: [ab-monitor/deploy/kubernetes/overlays/single]\n"
        kinds = {each["kind"] for each in self.build(mine, base + snippet)}
        assert kinds == {each["kind"] for each in built(OVERLAYS["single"])} - {"ServiceMonitor", "PrometheusRule"}
