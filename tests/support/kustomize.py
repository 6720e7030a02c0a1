"""What `kustomize build` makes of the manifests, for machines that lack it: the subset that they use, nothing more.

resources (files and directories), namespace, labels without selectors, images, configMapGenerator from files without
hash, and JSON patches (RFC 6902: add, replace, remove) of one target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

JSON = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "namespace", "labels", "images", "configMapGenerator", "patches"}
CLUSTER_WIDE = {"Namespace"}


def documents(path: Path) -> list[JSON]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document is not None]


def built(directory: Path) -> list[JSON]:
    """Return the resources of a directory with a kustomization.yaml; raises `ValueError` for what is not known here."""
    (kustomization,) = documents(directory / "kustomization.yaml")
    if unknown := set(kustomization) - KNOWN:
        raise ValueError(f"{directory.name}/kustomization.yaml: got {sorted(unknown)}, expected {sorted(KNOWN)}")
    found = [each for name in kustomization.get("resources", []) for each in _resource(directory / name)]
    found += [_generated(directory, generator) for generator in kustomization.get("configMapGenerator", [])]
    for patch in kustomization.get("patches", []):
        (target,) = [
            each for each in found if (each["kind"], each["metadata"]["name"]) == tuple(patch["target"].values())
        ]
        for operation in yaml.safe_load((directory / patch["path"]).read_text(encoding="utf-8")):
            _apply(target, operation)
    for resource in found:
        for labels in kustomization.get("labels", []):
            resource["metadata"].setdefault("labels", {}).update(labels["pairs"])
        if "namespace" in kustomization and resource["kind"] not in CLUSTER_WIDE:
            resource["metadata"]["namespace"] = kustomization["namespace"]
        for pod in _pods(resource):
            _set_images(pod, {each["name"]: each for each in kustomization.get("images", [])})
    return found


def _resource(path: Path) -> list[JSON]:
    return built(path) if path.is_dir() else documents(path)


def _generated(directory: Path, generator: JSON) -> JSON:
    """Return a ConfigMap with the content of files."""
    if generator.get("options") != {"disableNameSuffixHash": True}:
        raise ValueError(f"configMapGenerator {generator['name']}: expected the option disableNameSuffixHash only")
    content = {Path(name).name: (directory / name).read_text(encoding="utf-8") for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": content}


def _pods(resource: JSON) -> Iterator[JSON]:
    """Yield the pod specification of a workload."""
    if resource["kind"] in {"Deployment", "StatefulSet"}:
        yield resource["spec"]["template"]["spec"]


def _set_images(pod: JSON, images: Mapping[str, JSON]) -> None:
    for container in pod["containers"]:
        name, _, tag = container["image"].partition(":")
        if name in images:
            container["image"] = f"{images[name].get('newName', name)}:{images[name].get('newTag', tag)}"


def _apply(document: JSON, operation: JSON) -> None:
    """Apply one operation of RFC 6902 in place."""
    *way, last = operation["path"].lstrip("/").split("/")
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    match operation["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), operation["value"])
        case "add", dict():
            place[last] = operation["value"]
        case "replace", dict() if last in place:
            place[last] = operation["value"]
        case "remove", dict():
            del place[last]
        case _:
            raise ValueError(f"patch: got {operation}, expected add, replace or remove of what is there")
