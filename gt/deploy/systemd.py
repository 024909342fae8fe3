"""systemd units of a service on one machine: a dispatcher, and a worker for each GPU or CPU slot."""

from __future__ import annotations

from typing import Final

from gt.errors import GTError

from .files import filled
from .values import ADDRESS as ADDRESS_FORM
from .values import check_value

ADDRESS: Final = "ipc:///run/gt/dispatcher"
"""Where the dispatcher listens: a Unix socket in a folder that its user and the members of its group can enter."""
UNIT_NAMES: Final = ("gt-dispatcher.service", "gt-worker@.service", "gt.target", "gt.sysusers.conf", "install.sh")
FORBIDDEN: Final = frozenset(" \t\n'\"\\%$;")
"""Characters that mean something else in a unit."""


def systemd_files(*, gt: str, workers: int, gpus: int, address: str = ADDRESS) -> dict[str, str]:
    """Units for `gpus` workers on GPUs, or else `workers` on the CPU, by file name. `gt` is the path of the command.

    At a Unix socket the members of the group gt may run programs; on TCP, who has a key. Raises `GTError` for a path or address
    that cannot stand in a unit.
    """
    for each in (gt, address):
        if FORBIDDEN & {*each}:
            raise GTError(f"{each!r} cannot stand in a unit: choose one without spaces, quotes, '%' and '$'")
    check_value("--address", address, ADDRESS_FORM)
    count = gpus or workers
    values = {
        "gt": gt,
        "address": address,
        "group": "--group gt " if address.startswith("ipc://") else "",
        "workers": count,
        "device": "cuda:%i" if gpus else "cpu",
        "instances": " ".join(f"gt-worker@{number}.service" for number in range(count)),
        "hardening": filled("systemd", "hardening", {}).rstrip(),
    }
    return {name: filled("systemd", name, values) for name in UNIT_NAMES}
