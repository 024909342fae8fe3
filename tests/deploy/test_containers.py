"""Files of `gt deploy compose` and `gt deploy k8s`: sizes, keys, and the two ways to fill in templates: for kubectl, for Helm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gt.commands.app import app
from gt.deploy.containers import compose_files
from gt.deploy.kubernetes import MONITOR, OBJECTS, kubernetes_files


def written(*arguments: str) -> str:
    """What a command says that succeeds."""
    said = CliRunner().invoke(app, ["deploy", *arguments])
    assert said.exit_code == 0, said.output
    return said.output


def objects(files: dict[str, str]) -> dict[str, Any]:
    """What kustomization.yaml lists, by kind and name."""
    listed = yaml.safe_load(files["kustomization.yaml"])["resources"]
    found = [each for name in listed for each in yaml.safe_load_all(files[name])]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def test_compose_gives_each_worker_a_name_and_a_gpu_of_its_own(tmp_path: Path) -> None:
    written("compose", "--gpus", "2", "--memory", "8Gi", "--out", str(tmp_path))
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    assert sorted(services) == ["dispatcher", "top", "worker-0", "worker-1"]
    for number in (0, 1):
        worker = services[f"worker-{number}"]
        assert f"--announce=tcp://worker-{number}:7101" in worker["command"]
        resources = worker["deploy"]["resources"]
        assert resources["limits"] == {"memory": "8g"}
        assert resources["reservations"]["devices"][0]["device_ids"] == [str(number)]
    assert services["dispatcher"]["build"]["target"] == "cuda"
    assert "--workers=2" in services["dispatcher"]["command"]
    assert (tmp_path / "keys/.gitignore").read_text() == "*\n"
    assert all(service["user"] != "0:0" for service in services.values())


def test_kubernetes_gives_each_worker_a_gpu(tmp_path: Path) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text('# "quoted"\nsharding_config:\n  batch: {strategy: data_parallel}\n')
    out = tmp_path / "out"
    said = written("k8s", "--gpus", "3", "--config", str(config), "--storage-class", "nfs", "--out", str(out))
    assert f"kubectl apply --kustomize {out}" in " ".join(said.split())
    found = objects({path.name: path.read_text() for path in out.glob("*.yaml")})
    worker = found["StatefulSet gt-worker"]["spec"]
    assert worker["replicas"] == 3
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert found["ConfigMap gt-config"]["data"]["config.yaml"] == config.read_text()
    assert found["PersistentVolumeClaim gt-data"]["spec"]["storageClassName"] == "nfs"
    assert not any(name.startswith("PodMonitor") for name in found)
    assert "has no key" not in said
    refused = CliRunner().invoke(
        app, ["deploy", "k8s", "--config", str(out / "keys.sh"), "--out", str(tmp_path / "no")]
    )
    assert refused.exit_code == 1
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("chart", [False, True])
def test_no_placeholder_is_left_and_no_key_is_written(chart: bool) -> None:
    files = kubernetes_files(
        version="1", workers=2, gpus=0, namespace="gt", storage="1Gi", pod_monitor=True, chart=chart
    )
    files |= compose_files(
        version="1", workers=2, gpus=0, source=Path("/src"), out=Path("/out"), owner=(1, 1), memory="1Gi"
    )
    for name, text in files.items():
        assert "@@" not in text, name
        assert not re.search(r"secret = |kind: Secret", text), name


def test_a_chart_and_manifests_have_the_same_objects() -> None:
    """What Helm makes of the chart is compared by tests/deploy/test_schemas.py, where Helm is."""
    said: dict[str, Any] = {
        "version": "1",
        "workers": 2,
        "gpus": 0,
        "namespace": "gt",
        "storage": "1Gi",
        "pod_monitor": True,
    }
    manifests, chart = kubernetes_files(**said), kubernetes_files(**said, chart=True)
    assert yaml.safe_load(manifests["kustomization.yaml"])["resources"] == ["namespace.yaml", *OBJECTS, MONITOR]
    templates = {name.removeprefix("chart/templates/") for name in chart if name.startswith("chart/templates/")}
    assert templates == {*OBJECTS, MONITOR, "NOTES.txt"}
    values = yaml.safe_load(chart["chart/values.yaml"])
    used = {name for text in chart.values() for name in re.findall(r"\.Values\.(\w+)", text)}
    assert used == set(values)


@pytest.mark.parametrize(
    ("version", "semantic"),
    [("0.3.0", "0.3.0"), ("1", "1.0.0"), ("0.3.0.dev0", "0.3.0-dev0"), ("0.3.0rc1+local.2", "0.3.0-rc1.local.2")],
)
def test_a_chart_has_a_version_that_helm_takes(version: str, semantic: str) -> None:
    """Helm refuses versions that are not semantic ones, as those of Python packages between two releases."""
    files = kubernetes_files(version=version, workers=1, gpus=0, namespace="gt", storage="1Gi", chart=True)
    chart = yaml.safe_load(files["chart/Chart.yaml"])
    assert (chart["version"], chart["appVersion"]) == (semantic, version)


def test_probes_and_hooks_are_commands_of_gt() -> None:
    """Each is run, as far as its options, by the command line that is tested here."""
    found = objects(kubernetes_files(version="1", workers=1, gpus=0, namespace="gt", storage="1Gi"))
    for name in ("dispatcher", "worker"):
        container = found[f"StatefulSet gt-{name}"]["spec"]["template"]["spec"]["containers"][0]
        hook = container["lifecycle"]["preStop"]
        probes = [container[each] for each in ("startupProbe", "livenessProbe")]
        commands = [each["exec"]["command"] for each in [hook, *probes]] + [["gt", *container["args"]]]
        for command in commands:
            words = command[command.index("gt") + 1 :]
            known = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            assert options <= set(re.findall(r"--[a-z-]+", known)), command


def test_there_is_a_worker_here_or_an_error(tmp_path: Path) -> None:
    """`gt drain here`, the hook of a worker's pod, where no dispatcher answers; tests/deploy/test_pods.py drains by it."""
    said = CliRunner().invoke(app, ["drain", "here", f"ipc://{tmp_path}/none"])
    assert said.exit_code == 1
    assert "there is no worker to drain here" in said.output
