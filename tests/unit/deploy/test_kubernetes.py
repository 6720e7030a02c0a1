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
from grafana.generate import build_boards
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
    """Return the resources of an overlay."""
    return built(OVERLAYS[request.param])


def resource_of_kind(resources: list[JSON], kind: str) -> JSON:
    """Return the only resource of a kind."""
    (resource,) = [candidate for candidate in resources if candidate["kind"] == kind]
    return resource


def workload(resources: list[JSON]) -> JSON:
    """Return the Deployment or StatefulSet."""
    (resource,) = [candidate for candidate in resources if candidate["kind"] in {"Deployment", "StatefulSet"}]
    return resource


def pod(resources: list[JSON]) -> JSON:
    """Return the specification of the pods."""
    specification: JSON = workload(resources)["spec"]["template"]["spec"]
    return specification


def container(resources: list[JSON]) -> JSON:
    """Return the only container of a pod."""
    (specification,) = pod(resources)["containers"]
    return dict(specification)


def config(resources: list[JSON]) -> str:
    """Return the text of the configuration that the pods mount."""
    (name,) = [candidate["configMap"]["name"] for candidate in pod(resources)["volumes"] if "configMap" in candidate]
    (config_map,) = [
        candidate
        for candidate in resources
        if candidate["kind"] == "ConfigMap" and candidate["metadata"]["name"] == name
    ]
    return str(config_map["data"]["config.toml"])


class TestGeneratedFiles:
    """Rules, boards and configuration in deploy/kubernetes/base."""

    def test_the_files_equal_the_generated_manifests(self) -> None:
        """The files are changed through their sources."""
        assert outdated(Addresses()) == []

    def test_the_rules_equal_those_of_the_prometheus_file(self) -> None:
        """Kubernetes installations have the same alerts."""
        (rule,) = documents(BASE / "prometheusrule.yaml")
        assert rule["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))

    def test_every_board_is_in_a_config_map_below_the_size_limit(self, resources: list[JSON]) -> None:
        """The label is for Grafana's sidecar; `kubectl apply` stores each map in an annotation."""
        config_maps = [
            config_map
            for config_map in resources
            if config_map["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        ]
        boards_in_maps = {
            name: json.loads(text) for config_map in config_maps for name, text in config_map["data"].items()
        }
        assert boards_in_maps == {f"ab-monitor-{name}": board for name, board in build_boards().items()}
        assert max(len(json.dumps(config_map)) for config_map in config_maps) < LONGEST_ANNOTATION

    def test_every_board_file_is_generated(self) -> None:
        """A file without code would never be updated."""
        assert {f"boards/{path.name}" for path in (BASE / "boards").iterdir()} < set(rendered(Addresses()))

    def test_the_command_checks_the_files_and_accepts_other_addresses(self) -> None:
        """Continuous integration runs `--check`; with addresses of one's own the files are others."""
        command = [sys.executable, "-m", "deploy.kubernetes.generate", "--check"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        command_with_address = [*command, "--grafana", "https://grafana.example.org/"]
        result = subprocess.run(command_with_address, cwd=ROOT, check=False, capture_output=True, text=True)
        assert result.returncode == 1
        assert result.stderr.splitlines() == [
            "prometheusrule.yaml is not what the code makes: run python -m deploy.kubernetes.generate"
        ]


class TestSchemas:
    """Every resource is one that a server would take, and has no field that it would drop."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_resources_are_valid_under_the_kubernetes_schemas(self, resources: list[JSON], version: str) -> None:
        """Unknown fields are errors."""
        kubernetes_resources = [
            resource for resource in resources if (resource["apiVersion"], resource["kind"]) not in published()
        ]
        assert {resource["kind"] for resource in kubernetes_resources} > {
            "Service",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "ConfigMap",
        }
        for resource in kubernetes_resources:
            kubernetes_validate.validate(resource, version, strict=True)

    def test_resources_are_valid_under_the_prometheus_operator_schemas(self, resources: list[JSON]) -> None:
        """The schemas are those that the operator publishes."""
        operator_resources = [
            resource for resource in resources if (resource["apiVersion"], resource["kind"]) in published()
        ]
        assert sorted(resource["kind"] for resource in operator_resources) == ["PrometheusRule", "ServiceMonitor"]
        assert [fault for resource in operator_resources for fault in faults(resource)] == []

    def test_the_schemas_reject_a_misspelt_field(self, resources: list[JSON]) -> None:
        """In both kinds of resources."""
        service_monitor = json.loads(json.dumps(resource_of_kind(resources, "ServiceMonitor")))
        service_monitor["spec"]["endpoints"][0]["pth"] = "/metrics"
        assert len(faults(service_monitor)) == 1
        service = {**resource_of_kind(resources, "Service"), "sepc": {}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(service, VERSIONS[0], strict=True)

    def test_resource_names_are_unique(self, resources: list[JSON]) -> None:
        """Resources of equal kind and name would overwrite each other."""
        names = [(resource["kind"], resource["metadata"]["name"]) for resource in resources]
        assert len(set(names)) == len(names)


class TestPods:
    """The pods and their privileges."""

    def test_the_pod_runs_with_minimal_privileges(self, resources: list[JSON]) -> None:
        """The restricted pod security standard, and a read-only file system."""
        pod_context = pod(resources)["securityContext"]
        assert pod_context["runAsNonRoot"] is True
        assert pod_context["seccompProfile"] == {"type": "RuntimeDefault"}
        container_context = container(resources)["securityContext"]
        assert container_context["allowPrivilegeEscalation"] is False
        assert container_context["readOnlyRootFilesystem"] is True
        assert container_context["capabilities"] == {"drop": ["ALL"]}
        assert pod(resources)["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(resources))

    def test_the_pod_runs_as_the_user_of_the_image(self, resources: list[JSON]) -> None:
        """Files of the image belong to nobody else."""
        (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
        pod_context = pod(resources)["securityContext"]
        assert (str(pod_context["runAsUser"]), str(pod_context["runAsGroup"])) == user

    def test_the_memory_of_the_pod_is_limited(self, resources: list[JSON]) -> None:
        """A leak ends the process and not the node."""
        sizes = container(resources)["resources"]
        assert sizes["limits"]["memory"]
        assert set(sizes["requests"]) == {"cpu", "memory"}

    def test_the_probes_ignore_unavailable_dependencies(self, resources: list[JSON]) -> None:
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

    def test_the_image_tag_is_the_version_of_the_repository(self, resources: list[JSON]) -> None:
        """A fixed tag, in the registry of the overlay."""
        name, tag = container(resources)["image"].rsplit(":", 1)
        assert name == "registry.example.org/ab-monitor"
        assert tag == __version__

    def test_every_volume_has_a_mount(self, resources: list[JSON]) -> None:
        """And every mount has its volume."""
        volumes = {volume["name"] for volume in pod(resources)["volumes"]}
        assert volumes == {volume["name"] for volume in container(resources)["volumeMounts"]}


class TestWiring:
    """Names, ports and labels agree between the manifests, and with the configuration."""

    def test_the_configuration_is_valid_with_every_secret(self, resources: list[JSON], tmp_path: Path) -> None:
        """The variables of the pods are keys of the configuration; secrets are optional."""
        path = tmp_path / "config.toml"
        path.write_text(config(resources), encoding="utf-8")
        sources = {variable["name"]: variable["valueFrom"] for variable in container(resources)["env"]}
        settings = load_settings(path, dict.fromkeys(sources, "0123456789abcdef"))
        assert settings.store.password == settings.kafka.sasl_password == settings.http.token == "0123456789abcdef"
        secrets = {name: source["secretKeyRef"] for name, source in sources.items() if "secretKeyRef" in source}
        assert all(source["optional"] and source["name"] == "ab-monitor" for source in secrets.values())
        assert len({source["key"] for source in secrets.values()}) == len(secrets) == 4

    def test_the_configuration_is_mounted_at_the_path_of_the_command(self, resources: list[JSON]) -> None:
        """The whole map is a directory."""
        (mount,) = [candidate for candidate in container(resources)["volumeMounts"] if candidate["name"] == "config"]
        assert container(resources)["args"][-1] == mount["mountPath"]

    def test_running_pods_receive_a_changed_configuration(self, resources: list[JSON]) -> None:
        """Kubelet updates a mounted directory, but no file with subPath; the name of the ConfigMap stays the same."""
        (mount,) = [candidate for candidate in container(resources)["volumeMounts"] if candidate["name"] == "config"]
        assert "subPath" not in mount
        names = [candidate["configMap"]["name"] for candidate in pod(resources)["volumes"] if "configMap" in candidate]
        assert names == ["ab-monitor-config"]

    def test_the_port_is_the_same_everywhere(self, resources: list[JSON]) -> None:
        """Others refer to it by its name."""
        http = tomllib.loads(config(resources))["http"]
        assert container(resources)["ports"] == [{"name": "http", "containerPort": http["port"]}]
        assert resource_of_kind(resources, "Service")["spec"]["ports"] == [
            {"name": "http", "port": http["port"], "targetPort": "http"}
        ]
        assert http["host"] == "0.0.0.0"  # noqa: S104 - inside of the pod

    def test_selectors_find_the_pods(self, resources: list[JSON]) -> None:
        """Workload, service, budget and policy mean the same pods, and the monitor of services means the service."""
        labels = workload(resources)["spec"]["template"]["metadata"]["labels"]
        selectors = [
            workload(resources)["spec"]["selector"]["matchLabels"],
            resource_of_kind(resources, "Service")["spec"]["selector"],
            resource_of_kind(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
            resource_of_kind(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        ]
        assert all(selector and selector.items() <= labels.items() for selector in selectors)
        monitored_labels = resource_of_kind(resources, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
        assert monitored_labels.items() <= resource_of_kind(resources, "Service")["metadata"]["labels"].items()

    def test_both_metrics_endpoints_have_separate_scrape_jobs(self, resources: list[JSON]) -> None:
        """The same jobs and paths as in the Prometheus configuration beside the compose file."""
        jobs = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
        endpoints = resource_of_kind(resources, "ServiceMonitor")["spec"]["endpoints"]
        paths_by_job = {
            entry["replacement"]: endpoint["path"]
            for endpoint in endpoints
            for entry in endpoint["relabelings"]
            if entry["targetLabel"] == "job"
        }
        assert paths_by_job == {job["job_name"]: job["metrics_path"] for job in jobs}
        assert {endpoint["port"] for endpoint in endpoints} == {"http"}

    def test_the_instance_label_is_the_name_of_the_pod(self, resources: list[JSON]) -> None:
        """Its address is another one after each restart, and with it all its series."""
        for endpoint in resource_of_kind(resources, "ServiceMonitor")["spec"]["endpoints"]:
            (relabeling,) = [
                candidate for candidate in endpoint["relabelings"] if candidate["targetLabel"] == "instance"
            ]
            assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_name"]

    def test_the_network_policy_admits_only_the_configured_connections(self, resources: list[JSON]) -> None:
        """Prometheus in; names, Kafka and the store out; nothing else."""
        policy = resource_of_kind(resources, "NetworkPolicy")["spec"]
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert [entry["ports"] for entry in policy["ingress"]] == [[{"port": "http", "protocol": "TCP"}]]
        assert all(entry["from"] for entry in policy["ingress"])
        settings = tomllib.loads(config(resources))
        kafka = {int(server.rpartition(":")[2]) for server in settings["kafka"]["bootstrap_servers"].split(",")}
        egress_ports = {(entry["port"], entry["protocol"]) for rule in policy["egress"] for entry in rule["ports"]}
        required_ports = {(port, "TCP") for port in kafka | {urlsplit(settings["store"]["url"]).port}}
        assert egress_ports == required_ports | {(53, "UDP"), (53, "TCP")}

    def test_a_node_can_always_be_drained(self, resources: list[JSON]) -> None:
        """One replica at a time, and those that wait for the store do not count."""
        budget = resource_of_kind(resources, "PodDisruptionBudget")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


class TestOverlays:
    """The overlays `single` and `replicated`."""

    def test_every_overlay_is_documented(self) -> None:
        """Each is documented."""
        documentation = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
        assert set(OVERLAYS) == {"single", "replicated"}
        assert all(f"deploy/kubernetes/overlays/{name}" in documentation for name in OVERLAYS)

    def test_the_single_overlay_has_one_replica(self) -> None:
        """The next one is ready before it ends: two configurations at once follow the same experiments."""
        spec = workload(built(OVERLAYS["single"]))["spec"]
        assert spec["replicas"] == 1
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    def test_replicas_are_static_group_members_named_like_their_pods(self) -> None:
        """Which only a StatefulSet gives again to the pod that follows."""
        resources = built(OVERLAYS["replicated"])
        assert workload(resources)["kind"] == "StatefulSet"
        spec = workload(resources)["spec"]
        assert spec["replicas"] > 1
        assert spec["serviceName"] == resource_of_kind(resources, "Service")["metadata"]["name"]
        (member,) = [
            variable["valueFrom"]
            for variable in container(resources)["env"]
            if variable["name"] == "ABMONITOR_KAFKA_GROUP_INSTANCE_ID"
        ]
        assert member == {"fieldRef": {"fieldPath": "metadata.name"}}

    def test_a_failed_rollout_can_be_rolled_back(self) -> None:
        """With ordered pods the broken one would be waited for."""
        assert workload(built(OVERLAYS["replicated"]))["spec"]["podManagementPolicy"] == "Parallel"


@functools.cache
def kustomize() -> list[str]:
    """Return the command that builds, of whichever program has it; skips where there is none, and no Go to make one."""
    go_bin = ROOT / ".cache" / f"kustomize-{KUSTOMIZE}"
    for program, command in (
        ("kustomize", ["build"]),
        ("kubectl", ["kustomize"]),
        (str(go_bin / "kustomize"), ["build"]),
    ):
        if shutil.which(program) is None:
            continue
        version_command = [program, "version", *(["--client"] if program == "kubectl" else [])]
        output = subprocess.run(version_command, capture_output=True, text=True, check=False).stdout
        version = re.search(r"(?:Kustomize Version: )?v(\d+)\.\d+\.\d+\s*$", output)
        if version is not None and int(version[1]) >= OLDEST_KUSTOMIZE:
            return [program, *command]
    if shutil.which("go") is None:
        pytest.skip(f"there is no kustomize {OLDEST_KUSTOMIZE} (kubectl 1.27 or newer has it), and no Go to build it")
    source = f"sigs.k8s.io/kustomize/kustomize/v5@{KUSTOMIZE}"
    build = subprocess.run(
        ["go", "install", source], env={**os.environ, "GOBIN": str(go_bin)}, capture_output=True, text=True, check=False
    )
    if build.returncode:
        pytest.skip(f"Go cannot build kustomize here: {build.stderr.strip().splitlines()[-1]}")
    return [str(go_bin / "kustomize"), "build"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_builds_the_same_resources(name: str) -> None:
    """All of them."""
    result = subprocess.run([*kustomize(), str(OVERLAYS[name])], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

    def in_order(resources: list[JSON]) -> list[JSON]:
        return sorted(resources, key=lambda resource: (resource["kind"], resource["metadata"]["name"]))

    assert in_order(list(yaml.safe_load_all(result.stdout))) == in_order(built(OVERLAYS[name]))


class TestDocumentedOverlays:
    """The overlays that docs/deployment.md proposes, as kustomize builds them."""

    @pytest.fixture
    def own_directory(self, tmp_path: Path) -> Path:
        """Return a directory with a configuration of one's own beside a copy of the repository's manifests."""
        shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "ab-monitor" / "deploy" / "kubernetes")
        (tmp_path / "config.toml").write_text("# mine\n", encoding="utf-8")
        return tmp_path

    @staticmethod
    def build(directory: Path, text: str) -> list[JSON]:
        """Return the resources that kustomize builds from a kustomization."""
        (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
        result = subprocess.run([*kustomize(), str(directory)], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return list(yaml.safe_load_all(result.stdout))

    def test_an_overlay_can_replace_configuration_image_and_ports(self, own_directory: Path) -> None:
        """Another configuration, image, label and port of Kafka."""
        (snippet,) = [entry for entry in SNIPPETS if "behavior: replace" in entry]
        resources = self.build(own_directory, snippet)
        assert config(resources) == "# mine\n"
        assert "ab-monitor-config" in {entry["metadata"]["name"] for entry in resources}
        assert container(resources)["image"].startswith("registry.internal/")
        assert all(entry["metadata"]["labels"]["release"] for entry in resources)
        ports = [entry["ports"] for entry in resource_of_kind(resources, "NetworkPolicy")["spec"]["egress"]]
        assert [entry["port"] for entry in ports[-1]] == [9093, 6379]

    def test_an_overlay_can_omit_the_prometheus_operator(self, own_directory: Path) -> None:
        """All other resources stay."""
        (snippet,) = [resource for resource in SNIPPETS if "$patch: delete" in resource]
        base = "resources: [ab-monitor/deploy/kubernetes/overlays/single]\n"
        kinds = {resource["kind"] for resource in self.build(own_directory, base + snippet)}
        assert kinds == {resource["kind"] for resource in built(OVERLAYS["single"])} - {
            "ServiceMonitor",
            "PrometheusRule",
        }
