"""Names of devices, by which a rule or a program pins what it computes to workers: a kind, a GPU, or one worker.

`cpu`, `cuda`, `torch:cpu` and so on are kinds. `cuda:1` is a worker on that GPU of its host, `cuda:1@node7` on that host,
`cpu@node7` one of that kind there, and `gt:3` worker 3, as `gt.devices()` numbers them. A number is not given twice, so the
worker that is started in place of a lost one has another; the other names are its too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

KINDS: Final = ("cpu", "cuda", "torch:cpu", "torch:cuda", "torch:mps", "torch:xpu")
DEVICE_PATTERN: Final = (
    r"^(((torch:)?(cpu|cuda(:(0|[1-9][0-9]{0,3}))?)|torch:(mps|xpu)(:(0|[1-9][0-9]{0,3}))?)(@[A-Za-z0-9._-]{1,200})?"
    r"|gt:(0|[1-9][0-9]{0,8}))$"
)
ALLOWED_DEVICES: Final = f"{', '.join(KINDS)}, of a GPU with :N, each with @HOST; gt:N"
_FORM: Final = re.compile(DEVICE_PATTERN)


def is_device(name: object) -> bool:
    """Whether it is the name of a device, which need not be there."""
    return isinstance(name, str) and _FORM.match(name) is not None


def names_of(worker: int, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """All names of a worker, by its number and what it says of itself, the kind first and that of it alone last."""
    kind, device, host = str(facts.get("kind", "cpu")), str(facts.get("device", "")), str(facts.get("host", ""))
    there = [kind, device, *((f"{kind}@{host}", f"{device}@{host}") if host else ())]
    return (*dict.fromkeys(name for name in there if name == kind or is_device(name)), f"gt:{worker}")


def show_devices(names: Iterable[Sequence[str]], most: int) -> str:
    """Workers as an error lists them, at most so many, each by its number and its device."""
    found = [f"{each[-1]} ({each[-2]})" for each in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
