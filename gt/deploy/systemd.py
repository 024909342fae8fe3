"""systemd units of a service on one machine: a dispatcher, and a worker for each GPU or CPU slot."""

from __future__ import annotations

from typing import Final

from .files import filled

ADDRESS: Final = "ipc:///run/gt/dispatcher"
"""Where the dispatcher listens: a Unix socket in a folder that its user and the members of its group can enter."""


def systemd_files(*, gt: str, workers: int, gpus: int, address: str = ADDRESS) -> dict[str, str]:
    """Units for `gpus` workers on GPUs, or else `workers` on the CPU, by file name. `gt` is the path of the command."""
    count = gpus or workers
    values = {
        "gt": gt,
        "address": address,
        "workers": count,
        "device": "cuda:%i" if gpus else "cpu",
        "instances": " ".join(f"gt-worker@{number}.service" for number in range(count)),
    }
    names = ("gt-dispatcher.service", "gt-worker@.service", "gt.target", "gt.sysusers.conf", "install.sh")
    return {name: filled("systemd", name, values) for name in names}
