"""A Slurm job that is a service: a dispatcher on the first node, workers on all, and an example of a program that uses it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gt.errors import GTError

from .files import filled
from .values import PARTITION, TIME_LIMIT, check_value

SCRIPTS: Final = {
    "gt-service.sh": "gt-service.sh",
    "gt-worker.sh": "gt-worker.sh",
    "gt-node.sh": "gt-node.sh",
    "gt-client.sh": "gt-client.sh",
    "train.py": "train.py.template",
}
"""The files, each with its template; one that ended in .py would count as a module of GT."""


def slurm_files(
    *, gt: str, scripts: Path, folder: Path, nodes: int, workers: int, gpus: int, cpus: int = 1, partition: str = "",
    time: str = "", directives: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """Scripts for `nodes` with `gpus` workers on GPUs each, or else `workers` on CPUs, each with `cpus` cores.

    `scripts` is where the scripts are to lie, `folder` where the service keeps keys, marks and snapshots: all nodes see both.
    `directives` are further options of sbatch. Raises `GTError` for what Slurm would refuse.
    """
    wrong = [each for each in directives if not each.startswith("--") or "\n" in each]
    if wrong:
        raise GTError(f"{wrong[0]!r} is no option of sbatch: say for example --sbatch=--account=physics")
    check_value("--partition", partition, PARTITION)
    check_value("--time", time, TIME_LIMIT)
    tasks = gpus or workers
    lines = [f"--cpus-per-task={cpus}"]
    lines += [f"--gpus-per-node={gpus}"] if gpus else []
    asked = [f"--partition={partition}"] if partition else []
    lines += [*asked, *([f"--time={time}"] if time else []), *directives]
    values = {
        "gt": shlex.quote(gt),
        "python": shlex.quote(str(Path(gt).with_name("python"))),
        "scripts": shlex.quote(str(scripts)),
        "folder": shlex.quote(str(folder)),
        "nodes": nodes,
        "tasks": tasks,
        "directives": "\n".join(f"#SBATCH {each}" for each in lines),
        "partition": "".join(f"#SBATCH {each}" for each in asked),
        # each task sees all GPUs of its node, as workers that exchange data by NCCL want it, and takes its own
        "srun": f"--cpus-per-task={cpus}" + (" --gpu-bind=none" if gpus else ""),
        "device": '"cuda:$SLURM_LOCALID"' if gpus else "cpu",
    }
    return {name: filled("slurm", template, values) for name, template in SCRIPTS.items()}
