"""A service on Kubernetes: manifests for kubectl, or a Helm chart, of the same templates.

A template is filled in twice over: for manifests with what was asked for, for a chart with the expressions by which Helm takes
it from `values.yaml`. So the chart, installed as it is, makes the same objects as the manifests (`tests/deploy`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .containers import (
    DISPATCHER_MEMORY,
    IGNORE_ALL,
    NO_CONFIG,
    USER_NUMBER,
    WORKER_LEASE_SECONDS,
    Ports,
    default_image,
    image_files,
)
from .files import filled
from .values import ACCESS_MODE, BYTES, CORES, IMAGE, NAMESPACE, STORAGE_CLASS, check_value

NAME: Final = "gt"
"""What the service is called, and its objects begin with. In a chart it is the name of the release."""
OBJECTS: Final = (
    "service_account.yaml", "config.yaml", "storage.yaml", "services.yaml", "dispatcher.yaml", "workers.yaml",
    "network_policies.yaml",
)  # fmt: skip
"""The templates of the objects, but of the one that few clusters know, `MONITOR`."""
MONITOR: Final = "pod_monitor.yaml"
DRAIN_SECONDS: Final = 100
"""How long a worker's pod that is to end waits for its sessions to leave it."""
GRACE_SECONDS: Final = 150
"""How long it may take to end, with that."""
START_SECONDS: Final = 300
"""How long sessions wait for a pod that is started again: it may have to be scheduled anew, and its image loaded."""
POD_SECURITY: Final = (
    f"{{runAsNonRoot: true, runAsUser: {USER_NUMBER}, runAsGroup: {USER_NUMBER}, fsGroup: {USER_NUMBER}, "
    "fsGroupChangePolicy: OnRootMismatch, seccompProfile: {type: RuntimeDefault}}"
)
SECURITY: Final = "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}"
COPY_RESOURCES: Final = "{requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}"
TOLERATION: Final = "[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]"


class ManifestText:
    """Writes values as they are."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def value(self, name: str) -> str:
        """A value, as YAML."""
        return json.dumps(self.values[name], ensure_ascii=False)

    def number(self, name: str) -> str:
        """A number, also within a word."""
        return str(self.values[name])

    def either(self, name: str, yes: str, no: str) -> str:
        """`yes` if there is such a value, `no` if it is false or empty."""
        return yes if self.values[name] else no


class ChartText(ManifestText):
    """Writes the expressions of Helm's templates for values."""

    def value(self, name: str) -> str:
        return f"{{{{ .Values.{name} | toJson }}}}"

    def number(self, name: str) -> str:
        return f"{{{{ int .Values.{name} }}}}"

    def either(self, name: str, yes: str, no: str) -> str:
        return f"{{{{ if .Values.{name} }}}}{yes}{{{{ else }}}}{no}{{{{ end }}}}"


def kubernetes_files(
    *, version: str, workers: int, gpus: int, namespace: str, storage: str, image: str | None = None, cpu: str = "1",
    memory: str = "4Gi", access_mode: str = "ReadWriteMany", storage_class: str = "", config: str = NO_CONFIG,
    pod_monitor: bool = False, chart: bool = False, ports: Ports = Ports(),  # noqa: B008 — it cannot change
) -> dict[str, str]:  # fmt: skip
    """The files of a service of `gpus` workers on GPUs, or else `workers` on CPUs, by name: for kubectl, or as a `chart`.

    `cpu` and `memory` are those of one worker's pod, `storage` the size of the volume that all pods share. Raises
    `GTError` for a value that Kubernetes would refuse.
    """
    image = image or default_image(version, gpu=gpus > 0)
    said_values = {
        "--namespace": (namespace, NAMESPACE), "--storage": (storage, BYTES), "--storage-class": (storage_class, STORAGE_CLASS),
        "--access-mode": (access_mode, ACCESS_MODE), "--cpu": (cpu, CORES), "--memory": (memory, BYTES),
        "--image": (image, IMAGE),
    }  # fmt: skip
    for option, (said_value, form) in said_values.items():
        check_value(option, said_value, form)
    values = {
        "image": image, "workers": gpus or workers, "gpu": gpus > 0, "cpu": cpu,
        "memory": memory, "dispatcherMemory": DISPATCHER_MEMORY, "storage": storage, "accessMode": access_mode,
        "storageClass": storage_class, "config": config, "podMonitor": pod_monitor, "port": ports.control,
        "bulkPort": ports.bulk, "peerPort": ports.peers, "metricsPort": ports.metrics,
    }  # fmt: skip
    plain = ManifestText(values)
    said = {"namespace": namespace, "name": NAME, "version": version}
    files = image_files(version, ports.control) | {
        "keys.sh": filled("kubernetes", "keys.sh", said),
        ".gitignore": "keys/\n",
        "keys/.gitignore": IGNORE_ALL,
    }
    if chart:
        return files | _chart_files(plain, said)
    files |= {name: _object(name, plain, NAME) for name in OBJECTS}
    if pod_monitor:
        files[MONITOR] = _object(MONITOR, plain, NAME)
    files["namespace.yaml"] = filled("kubernetes", "namespace.yaml", said)
    listed = "\n".join(f"  - {name}" for name in ("namespace.yaml", *OBJECTS, *([MONITOR] if pod_monitor else [])))
    files["kustomization.yaml"] = filled("kubernetes", "kustomization.yaml", said | {"resources": listed})
    return files


def _chart_files(plain: ManifestText, said: Mapping[str, str]) -> dict[str, str]:
    """The chart, in a folder of its own: whatever lies beside its files would be part of every release."""
    text = ChartText(plain.values)
    release = "{{ .Release.Name }}"
    files = {f"chart/templates/{name}": _object(name, text, release) for name in OBJECTS}
    files[f"chart/templates/{MONITOR}"] = (
        f"{{{{- if .Values.podMonitor }}}}\n{_object(MONITOR, text, release)}{{{{- end }}}}\n"
    )
    files["chart/templates/NOTES.txt"] = filled("kubernetes", "NOTES.txt", {})
    files["chart/Chart.yaml"] = filled(
        "kubernetes", "Chart.yaml", dict(said) | {"semantic_version": semantic_version(said["version"])}
    )
    literals = {name: plain.value(name) for name in plain.values}
    files["chart/values.yaml"] = filled("kubernetes", "values.yaml", literals)
    return files


def semantic_version(version: str) -> str:
    """A version of Python packaging as Helm wants one, in Semantic Versioning 2: `0.3.0.dev0` is `0.3.0-dev0`."""
    release, rest = re.fullmatch(r"(\d+(?:\.\d+){0,2})(.*)", version).groups()  # type: ignore[union-attr]
    numbers = ".".join([*release.split("."), "0", "0"][:3])
    return f"{numbers}-{rest.lstrip('.').replace('+', '.')}" if rest else numbers


def _object(name: str, text: ManifestText, service: str) -> str:
    """The template of an object, filled in for the service of this name."""
    port = text.number("port")
    values = {
        "name": service, "config": text.value("config"), "image": text.value("image"), "cpu": text.value("cpu"),
        "memory": text.value("memory"), "dispatcher_memory": text.value("dispatcherMemory"), "storage": text.value("storage"),
        "access_mode": text.value("accessMode"),
        "storage_class": text.either("storageClass", f"\n  storageClassName: {text.value('storageClass')}", ""),
        "workers": text.number("workers"), "port": port, "bulk_port": text.number("bulkPort"),
        "peer_port": text.number("peerPort"), "metrics_port": text.number("metricsPort"),
        "device": text.either("gpu", "cuda:0", "cpu"), "gpu": text.either("gpu", ", nvidia.com/gpu: 1", ""),
        "tolerations": text.either("gpu", TOLERATION, "[]"), "pod_security": POD_SECURITY, "security": SECURITY,
        "copy_resources": COPY_RESOURCES, "drain_seconds": DRAIN_SECONDS, "grace_seconds": GRACE_SECONDS,
        "start_timeout": START_SECONDS, "worker_lease": WORKER_LEASE_SECONDS,
        "alive": f'[gt, health, "tcp://127.0.0.1:{port}"]',
        "joined": f'[gt, health, "tcp://{service}-dispatcher:{port}", --worker=here]',
    }  # fmt: skip
    return filled("kubernetes", name, values)
