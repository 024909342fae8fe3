"""Images of GT, and a service of containers on one machine: a Dockerfile and a Compose file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from .files import filled
from .values import BYTES, IMAGE, check_value

USER_NUMBER: Final = 10001
"""The user and group in images. Pods run as this user, containers of Compose as who wrote the files, who owns the keys."""
NO_CONFIG: Final = "# Rules for signals, as in configs/ of GT; programs bring their own besides.\nsharding_config: {}\n"
"""The sharding config of a service that is given none."""
IGNORE_ALL: Final = "*\n"
"""The .gitignore of a folder of which nothing belongs into a repository."""
DISPATCHER_MEMORY: Final = "2Gi"
WORKER_LEASE_SECONDS: Final = 10
"""The silence after which a worker is lost. In a container nobody sees its process end, so sessions wait for so long."""


class Ports(NamedTuple):
    """Where containers listen: the dispatcher for messages, large data and Prometheus, workers for each other."""

    control: int = 7000
    bulk: int = 7001
    peers: int = 7101
    metrics: int = 9464


def default_image(version: str, *, gpu: bool) -> str:
    """The name of the image that the Dockerfile's comments build."""
    return f"gt-tensor:{_tag(version)}-cuda" if gpu else f"gt-tensor:{_tag(version)}"


def _tag(version: str) -> str:
    """A version of Python packaging as the tag of an image, which has no `+`."""
    return version.replace("+", "-")


def image_files(version: str, port: int = Ports().control) -> dict[str, str]:
    """A Dockerfile for a checkout of GT, and what of the checkout it does without."""
    values = {"version": _tag(version), "uid": USER_NUMBER, "port": port}
    names = ("Dockerfile", "Dockerfile.dockerignore")
    return {name: filled("containers", name, values) for name in names}


def compose_files(
    *, version: str, workers: int, gpus: int, source: Path, out: Path, owner: tuple[int, int], memory: str,
    image: str | None = None, config: str = NO_CONFIG, ports: Ports = Ports(),  # noqa: B008 — it cannot change
) -> dict[str, str]:  # fmt: skip
    """A Compose file of a dispatcher and `gpus` workers on GPUs, or else `workers` on the CPU, and what it needs, by name.

    `source` is the checkout of which images are built, `out` where the files are to be, `owner` the user and group that own them
    and run the containers, `memory` that of one worker. Raises `GTError` for a value that Docker would refuse.
    """
    image = check_value("--image", image or default_image(version, gpu=gpus > 0), IMAGE)
    check_value("--memory", memory, BYTES)
    count = gpus or workers
    values: dict[str, object] = {
        "port": ports.control, "bulk_port": ports.bulk, "peer_port": ports.peers, "metrics_port": ports.metrics,
        "image": json.dumps(image), "target": "cuda" if gpus else "cpu",
        "worker_lease": WORKER_LEASE_SECONDS,
        "source": json.dumps(str(source)), "dockerfile": json.dumps(str(out / "Dockerfile")), "user": f"{owner[0]}:{owner[1]}",
        "workers": count, "memory": _compose_bytes(memory), "dispatcher_memory": _compose_bytes(DISPATCHER_MEMORY),
        "and_workers": f" and {count} {'worker' if count == 1 else 'workers'}",
    }  # fmt: skip
    values["worker_services"] = "\n".join(_worker(number, values, gpu=gpus > 0) for number in range(count))
    return image_files(version, ports.control) | {
        "compose.yaml": filled("containers", "compose.yaml", values),
        "config.yaml": config,
        "keys/.gitignore": IGNORE_ALL,
        "data/.gitignore": IGNORE_ALL,
    }


def _worker(number: int, values: dict[str, object], *, gpu: bool) -> str:
    """One worker's service. Docker gives every container the first GPU that is asked for by count: so each names its own."""
    device = f'{{driver: nvidia, device_ids: ["{number}"], capabilities: [gpu]}}'
    said = {
        "number": number,
        "device": "cuda:0" if gpu else "cpu",
        "gpu": f", reservations: {{devices: [{device}]}}" if gpu else "",
        "shared_memory": "    shm_size: 1gb\n" if gpu else "",
    }
    return filled("containers", "worker.yaml", values | said)


def _compose_bytes(memory: str) -> str:
    """An amount of memory as Compose writes it, of one as Kubernetes does: 4Gi is 4g there."""
    return memory.removesuffix("i").lower()
