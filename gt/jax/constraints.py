"""Placements that a program asks for by `with_sharding_constraint`: signals of their own, and the rules for these."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jax.sharding import NamedSharding, PartitionSpec

import gt
from gt.client.tensor import emission

if TYPE_CHECKING:
    from gt import Tensor
    from gt.client.session.session import Session

__all__ = ["ShardingConstraint", "constrained", "constraint_of", "is_constrained", "register"]

UNCONSTRAINED: Final = PartitionSpec.UNCONSTRAINED
_PREFIX: Final = "sharding constraint ("


class ShardingConstraint(NamedTuple):
    """The signal of a constraint, JAX's mesh, and for each of its axes the dimension that is sharded, or None where each worker
    along it has all."""

    signal: str
    mesh: tuple[tuple[str, int], ...]
    dimensions: tuple[tuple[str, int | None], ...]

    def rules(self) -> list[dict[str, Any]]:
        """What a config would say."""
        return [
            {"strategy": "replicate", "mesh_axis": axis}
            if dimension is None
            else {"strategy": "sequence_parallel", "dimension": dimension, "mesh_axis": axis}
            for axis, dimension in self.dimensions
        ]


def constraint_of(sharding: Any) -> ShardingConstraint | None:
    """The constraint of one of JAX's shardings; None where it says nothing about workers. Raises `NotImplementedError` for a
    sharding without named axes."""
    if not isinstance(sharding, NamedSharding):
        if sharding.num_devices == 1:
            return None
        raise NotImplementedError(
            f"gt.jax takes a NamedSharding or a PartitionSpec as sharding constraint, not a {type(sharding).__name__}"
        )
    mesh = tuple((str(name), int(size)) for name, size in dict(sharding.mesh.shape).items() if size > 1)
    parts = [part if isinstance(part, tuple) or part in (None, UNCONSTRAINED) else (part,) for part in sharding.spec]
    sharded = {name: at for at, part in enumerate(parts) if isinstance(part, tuple) for name in part}
    free = any(part is UNCONSTRAINED for part in parts)
    named = [(name, sharded.get(name)) for name, _ in mesh if name in sharded or not free]
    if not named:
        return None
    said = ", ".join(f"{name}: {'whole' if at is None else at}" for name, at in named)
    return ShardingConstraint(f"{_PREFIX}{said})", mesh, tuple(named))


def is_constrained(signals: tuple[str, ...]) -> bool:
    """Whether signals end with that of a constraint, which says of any tensor where it lives, parameter or not."""
    return signals[-1].startswith(_PREFIX)


def constrained(x: Tensor, **_: Any) -> Tensor:
    """`x` in the placement that the signal asks for."""
    return emission.emit("tag", (x,), False)


def register(session: Session, constraints: Iterable[ShardingConstraint]) -> None:
    """Give a session the rules of constraints; its mesh is JAX's where it has no config. Warns of a constraint whose axes the
    session's mesh has not, which then means nothing."""
    wanted = list(dict.fromkeys(constraints))
    if not wanted or session.one_worker:
        return
    for each in wanted:
        config = session.config
        if config is None and _product(each.mesh) == session.facts.get("workers"):
            gt.load_config({"mesh": dict(each.mesh), "sharding_config": {each.signal: each.rules()}})
            continue
        axes = _axes(config)
        missing = [axis for axis, _ in each.dimensions if axis not in axes]
        if missing:
            warnings.warn_explicit(
                f"gt.jax: a sharding constraint names the mesh axis {missing[0]}, which the mesh of the service has not "
                f"({', '.join(axes) or 'no config'}): it means nothing",
                UserWarning,
                __file__,
                sys._getframe().f_lineno,
            )
        elif config is not None and each.signal not in config.rules:
            gt.register_config(each.signal, each.rules())


def _axes(config: Any) -> Mapping[str, int]:
    return {} if config is None or config.mesh is None else config.mesh


def _product(mesh: tuple[tuple[str, int], ...]) -> int:
    found = 1
    for _, size in mesh:
        found *= size
    return found
