"""Ops that installed packages bring, as PyTorch's `torch.ops`: `gt.ops.softops.softclamp(x)`; and what declares one, `gt.ops.Op`.

Packages are looked for when their names are first asked for (entry points of the group `gt.ops`); `GT_OPS=0` turns that off. How
to write one: docs/custom-ops.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gt.op_packages.definition import NO_GRADIENT
from gt.op_packages.definition import PackageOp as Op
from gt.op_packages.definition import PackageOpSample as Sample

if TYPE_CHECKING:
    from gt.client.package_ops import OpNamespace

__all__ = ["NO_GRADIENT", "Op", "Sample"]


def __getattr__(name: str) -> OpNamespace:
    if name.startswith("__"):
        raise AttributeError(name)
    from gt.client.package_ops import namespace

    return namespace(name)


def __dir__() -> list[str]:
    from gt.client.package_ops import package_names

    return [*__all__, *package_names()]
