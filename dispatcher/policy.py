"""What a session's rules ask for, resolved against its mesh: for each signal, one wish per mesh axis.

A wish speaks of one mesh axis. Signals nest: the innermost signal that says something about an axis decides it. How
wishes bind to instructions is the planner's business (`plan.py`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gt.errors import ConfigError
from gt.placement import Mesh

if TYPE_CHECKING:
    from gt.config import Config, Rule


@dataclass(frozen=True, slots=True)
class Wish:
    """What one rule asks for on one mesh axis.

    `strategy` is 'data_parallel', 'tensor_parallel', 'replicate' or 'shard'. `dimension` is the weight's dimension
    (tensor_parallel, None: chosen) or the tensor's (shard); `weights` which positions take part (shard, None: all).
    """

    strategy: str
    where: str
    dimension: int | None = None
    weights: tuple[int, ...] | None = None


Wishes = tuple[Wish | None, ...]


@dataclass(slots=True)
class Policy:
    """The wishes of a session's rules on its mesh."""

    mesh: Mesh
    table: dict[str, Wishes]
    backward: dict[str, str] = field(default_factory=dict)
    """For a rule that says so, the rule that holds for the gradients in its place."""
    memo: dict[tuple[tuple[str, ...], bool], Wishes] = field(default_factory=dict)

    def wishes(self, path: tuple[str, ...], *, backward: bool = False) -> Wishes:
        """One wish or None for each mesh axis, for a path of signals, outermost first; `backward` for gradients."""
        found = self.memo.get((path, backward))
        if found is None:
            merged: list[Wish | None] = [None] * len(self.mesh.sizes)
            for end in range(1, len(path) + 1):
                for signal in (path[end - 1], "/".join(path[:end])):
                    name = self.backward.get(signal, signal) if backward else signal
                    for axis, wish in enumerate(self.table.get(name, ())):
                        if wish is not None:
                            merged[axis] = wish
            if len(self.memo) > 10_000:
                self.memo.clear()
            found = self.memo[path, backward] = tuple(merged)
        return found


def resolve(config: Config, mesh: Mesh) -> Policy:
    """The policy of a config whose mesh is `mesh`. Raises `ConfigError` naming file, line and key."""
    table = {signal: _wishes(signal, rule, mesh) for signal, rule in config.rules.items()}
    return Policy(mesh, table, {signal: rule.backward for signal, rule in config.rules.items() if rule.backward})


def _wishes(signal: str, rule: Rule, mesh: Mesh) -> Wishes:
    none: list[Wish | None] = [None] * len(mesh.sizes)
    if rule.shard is not None:
        return _explicit(signal, rule, mesh)
    if rule.strategy is None:
        return tuple(none)
    wish = Wish(rule.strategy, rule.where, rule.dimension)
    if rule.axis is None:
        return (wish,) * len(mesh.sizes)
    if rule.axis not in mesh.axes:
        raise ConfigError(
            f"{rule.where}: sharding_config.{signal}: {rule.strategy} needs the mesh axis {rule.axis!r}; "
            f"allowed: {', '.join(mesh.axes)}, by mesh_axis"
        )
    none[mesh.axes.index(rule.axis)] = wish
    return tuple(none)


def _explicit(signal: str, rule: Rule, mesh: Mesh) -> Wishes:
    """The workers of an explicit rule as weights on each axis: a worker that is not named has weight 0."""
    assert rule.shard is not None
    dimension, chosen = rule.shard.axis, set(rule.shard.workers)
    coordinates = [mesh.coordinates(rank) for rank in sorted(chosen)]
    used = [{at[axis] for at in coordinates} for axis in range(len(mesh.sizes))]
    grid = {mesh.rank(at) for at in itertools.product(*used)}
    if grid != chosen:
        raise ConfigError(
            f"{rule.where}: sharding_config.{signal}.shard.workers: {sorted(chosen)} is no block of the mesh "
            f"{dict(zip(mesh.axes, mesh.sizes, strict=True))}; allowed: all combinations of some positions on each axis, "
            f"such as {sorted(grid)}"
        )
    wishes: list[Wish | None] = []
    for axis, size in enumerate(mesh.sizes):
        weights = tuple(mesh.weights[axis][at] if at in used[axis] else 0 for at in range(size))
        wishes.append(Wish("shard", rule.where, dimension, None if weights == mesh.weights[axis] else weights))
    return tuple(wishes)
