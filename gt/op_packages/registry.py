"""The ops of packages that this process knows: joined with the op table, and found again by the names that instructions have.

An instruction of such an op has the name `package::op@version`, in segments, plans, logs and errors. So no op of a package can
take the place of one of GT's, and no version that of another.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from gt.errors import GTError
from gt.ir.ops import OPS

from .definition import PackageOp

MAX_OPS: Final = 1024
"""The most ops of one package."""
RESERVED: Final = frozenset({"aten", "core", "gt", "prims", "torch"})
"""Names that no package may have: those of GT, and of PyTorch's own ops."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_lock: Final = threading.Lock()


class OpPackage(NamedTuple):
    """A package of ops: its name in `gt.ops.<name>`, the distribution that brings it with that one's version, and its ops."""

    name: str
    distribution: str
    version: str
    ops: dict[str, PackageOp]

    @property
    def said(self) -> str:
        """'gt-softops 1.2.0': what to install."""
        return f"{self.distribution} {self.version}"


PACKAGES: Final[dict[str, OpPackage]] = {}
"""All that were joined, by name."""
_DEFINITIONS: Final[dict[str, tuple[OpPackage, PackageOp]]] = {}


def title_of(package: str, op: PackageOp) -> str:
    """The name that instructions have: 'softops::softclamp@1'."""
    return f"{package}::{op.name}@{op.version}"


def is_packaged(op: str) -> bool:
    """Whether the name of an op is that of a package's."""
    return "::" in op


def definition(op: str) -> PackageOp:
    """The declaration of an op by the name that instructions have. Raises `KeyError` for one that is not here."""
    return _DEFINITIONS[op][1]


def package_of(op: str) -> OpPackage | None:
    """The package that brings an op here; None for one that is not here."""
    found = _DEFINITIONS.get(op)
    return None if found is None else found[0]


def join(name: str, distribution: str, version: str, ops: Any) -> OpPackage:
    """Add the ops of a package to the op table of this process.

    Raises `GTError` for a name that is none, reserved, or another distribution's, and for what is not a list of `PackageOp` with
    different names. Nothing is added then.
    """
    if not _NAME.fullmatch(name):
        raise GTError(
            f"the package of ops {name!r} ({distribution} {version}) needs a name of small letters, digits and _"
        )
    if name in RESERVED:
        raise GTError(
            f"the package of ops {name!r} ({distribution} {version}) needs another name: that one is reserved"
        )
    listed: list[Any] = list(ops) if isinstance(ops, Iterable) else [ops]
    if not all(isinstance(op, PackageOp) for op in listed):
        raise GTError(f"the entry point {name!r} of {distribution} {version} is no list of gt.ops.Op")
    by_name = {op.name: op for op in listed}
    if not 0 < len(listed) <= MAX_OPS or len(by_name) != len(listed):
        raise GTError(f"{distribution} {version} brings 1 to {MAX_OPS} ops of different names, not {len(listed)}")
    package = OpPackage(name, distribution, version, by_name)
    with _lock:
        if name in PACKAGES:
            raise GTError(
                f"two distributions bring a package of ops {name!r}: {PACKAGES[name].said} and {package.said}; uninstall one"
            )
        for op in listed:
            title = title_of(name, op)
            _DEFINITIONS[title] = package, op
            OPS[title] = op.row(title)
        PACKAGES[name] = package
    return package


def leave(name: str) -> None:
    """Take a package out again, for tests and for `gt conformance`. Nothing that computes with it may be under way."""
    with _lock:
        package = PACKAGES.pop(name)
        for op in package.ops.values():
            title = title_of(name, op)
            del _DEFINITIONS[title], OPS[title]
