"""Files of `gt deploy` as Kubernetes, Helm, Compose and the Prometheus operator take them: `make deploy-test`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from effort import EFFORT

from gt.deploy.containers import compose_files
from gt.deploy.files import write_files
from gt.deploy.kubernetes import kubernetes_files

pytestmark = pytest.mark.skipif(EFFORT < 1, reason="make deploy-test runs it")
SIZES: list[dict[str, Any]] = [
    {"workers": 2, "gpus": 0, "storage": "1Gi"},
    {"workers": 1, "gpus": 4, "storage": "1Ti", "pod_monitor": True, "storage_class": "nfs", "config": "a: 'b'\n# \"c\"\n"},
    {"workers": 9, "gpus": 0, "storage": "1Gi", "access_mode": "ReadWriteOnce", "image": "host:5000/gt:1", "memory": "1Gi"},
]  # fmt: skip
KUBERNETES = ("1.33.0", "1.37.0")


def manifests(size: dict[str, Any]) -> list[dict[str, Any]]:
    """All objects that kubectl is given."""
    files = kubernetes_files(version="0.1.0", namespace="gt", **size)
    listed = yaml.safe_load(files["kustomization.yaml"])["resources"]
    return [each for name in listed for each in yaml.safe_load_all(files[name])]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid(size: dict[str, Any], version: str) -> None:
    """By the schemas of Kubernetes, in which no unknown field is allowed."""
    schemas = pytest.importorskip("kubernetes_validate", reason="make deploy-test installs it")
    for each in manifests(size):
        if each["kind"] != "PodMonitor":
            schemas.validate(each, version, strict=True)
    wrong = manifests(size)[-1] | {"spce": {}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(
            wrong if wrong["kind"] != "PodMonitor" else manifests(size)[0] | {"spce": {}}, version, strict=True
        )


def test_the_pod_monitor_is_one() -> None:
    """By the model of the Prometheus operator, which keeps all that is said."""
    models = pytest.importorskip("cloudcoil.models.prometheus_operator.v1", reason="make deploy-test installs it")
    (said,) = (each for each in manifests(SIZES[1]) if each["kind"] == "PodMonitor")
    read = models.PodMonitor.model_validate(said)
    assert read.spec.selector.match_labels == said["spec"]["selector"]["matchLabels"]
    (endpoint,) = read.spec.pod_metrics_endpoints
    assert (endpoint.port, endpoint.interval) == ("metrics", "15s")
    assert endpoint.model_extra is None or not endpoint.model_extra
    (dispatcher,) = (
        each
        for each in manifests(SIZES[1])
        if each["metadata"]["name"] == "gt-dispatcher" and "replicas" in each["spec"]
    )
    pod = dispatcher["spec"]["template"]
    assert said["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert endpoint.port in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.parametrize("size", SIZES)
def test_helm_makes_the_same_objects_of_the_chart(tmp_path: Path, size: dict[str, Any]) -> None:
    """By Helm itself: the chart of one size has the manifests of that size, also where `--set` says it of another chart."""
    helm = pytest.importorskip("helm_python", reason="make deploy-test installs it")
    write_files(tmp_path / "of", kubernetes_files(version="0.1.0", namespace="gt", chart=True, **size), force=False)
    write_files(
        tmp_path / "other",
        kubernetes_files(version="0.1.0", namespace="gt", chart=True, workers=5, gpus=5, storage="2Gi"),
        force=False,
    )
    values = yaml.safe_load((tmp_path / "of/chart/values.yaml").read_text())
    wanted = {(each["kind"], each["metadata"]["name"]): each for each in manifests(size) if each["kind"] != "Namespace"}
    for folder, said in (("of", None), ("other", values)):
        with helm.Chart.load(tmp_path / folder / "chart") as chart:
            rendered = chart.render(said, name="gt", namespace="gt")
        texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
        found = [each for text in texts for each in yaml.safe_load_all(text) if each]
        assert {(each["kind"], each["metadata"]["name"]): each for each in found} == wanted
        with helm.Chart.load(tmp_path / folder / "chart") as chart:
            named = chart.render(said, name="two", namespace="gt")
        assert "name: two-dispatcher" in named["gt-tensor/templates/dispatcher.yaml"]
        assert "gt-dispatcher" not in "".join(named.values())
    report = helm.lint(tmp_path / "of/chart", strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("gpus", [0, 2])
def test_compose_files_are_valid(gpus: int) -> None:
    """By the Compose specification."""
    specification = pytest.importorskip("compose_spec", reason="make deploy-test installs it")
    files = compose_files(
        version="0.1.0", workers=2, gpus=gpus, source=Path("/src"), out=Path("/out"), owner=(1000, 1000), memory="4Gi"
    )
    said = yaml.safe_load(files["compose.yaml"])  # whose anchors the validator does not know
    read = specification.PyCompose.from_yaml(yaml.safe_dump(said))
    read.validate()
    assert set(read.service_names()) == {"dispatcher", "top", "worker-0", "worker-1"}
    said["services"]["dispatcher"]["comand"] = []
    with pytest.raises(ValueError, match="comand"):
        specification.PyCompose.from_yaml(yaml.safe_dump(said))


def test_the_dockerfile_has_no_fault_that_a_linter_knows(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("make deploy-test installs hadolint")
    files = kubernetes_files(version="0.1.0", namespace="gt", **SIZES[0])
    write_files(tmp_path, {"Dockerfile": files["Dockerfile"]}, force=False)
    found = subprocess.run([program, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_keys_are_made_once_and_given_to_kubernetes(tmp_path: Path) -> None:
    """keys.sh, with the real kubectl as far as that needs no cluster: what is applied are these secrets."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    write_files(tmp_path / "out", kubernetes_files(version="0.1.0", namespace="lab", **SIZES[0]), force=False)
    applied = tmp_path / "applied"
    stand_in = tmp_path / "bin/kubectl"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\ncase "$*" in *apply*) cat >> {applied}; echo "---" >> {applied} ;; *) exec {kubectl} "$@" ;; esac\n'
    )
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "GT_KEYS": str(tmp_path / "others"),
    }  # as whoever runs other services has it
    for _ in range(2):
        subprocess.run(["sh", tmp_path / "out/keys.sh"], check=True, env=environment, capture_output=True)
    assert (tmp_path / "out/keys/service.key").is_file()
    assert not (tmp_path / "others").exists()
    found = [each for each in yaml.safe_load_all(applied.read_text()) if each]
    half = len(found) // 2
    assert json.dumps(found[:half]) == json.dumps(found[half:]), "a second time changes no key"
    held = {each["metadata"]["name"]: sorted(each.get("data", ())) for each in found[:half]}
    assert held == {
        "lab": [],
        "gt-service-key": ["service.key"],
        "gt-worker-keys": ["operator.key", "worker.key"],
        "gt-authorized": ["operator.pub", "worker.pub"],
    }
    assert {each["metadata"].get("namespace", "lab") for each in found} == {"lab"}
    used = set()
    for each in manifests(SIZES[0]):
        for volume in each["spec"]["template"]["spec"]["volumes"] if each["kind"] == "StatefulSet" else ():
            used |= {
                volume[kind][name] for kind, name in (("secret", "secretName"), ("configMap", "name")) if kind in volume
            }
    assert used - {"gt-config"} == set(held) - {"lab"}


@pytest.mark.parametrize("size", SIZES)
def test_kubectl_puts_all_objects_into_the_namespace(tmp_path: Path, size: dict[str, Any]) -> None:
    """By the real kubectl, which needs no cluster to put a kustomization together."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    write_files(tmp_path, kubernetes_files(version="0.1.0", namespace="lab", **size), force=False)
    said = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True).stdout
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(said)}
    wanted = {(each["kind"], each["metadata"]["name"]): each for each in manifests(size)}
    del wanted["Namespace", "gt"], found["Namespace", "lab"]
    assert {each["metadata"].pop("namespace") for each in found.values()} == {"lab"}
    assert found == wanted
