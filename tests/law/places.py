"""Configs as data, and how they are drawn: meshes of one and two axes, and a rule of any form for some of the signals.

Everything drawn is valid for the number of workers that is drawn with it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, NamedTuple

from gt.config import Config
from gt.dispatcher.policy import resolve
from gt.errors import ConfigError
from gt.placement import uniform_mesh

from .programs import SIGNALS, Draws

AXES: Final = (("data", "model"), ("model", "data"), ("x", "model"), ("data", "y"))

FORMS: Final = (*("data_parallel", "tensor_parallel", "shard") * 3, "replicate", "hint")


class Place(NamedTuple):
    """Where a program runs. `codec`: every message goes through its bytes."""

    workers: int
    config: dict[str, Any] | None
    codec: bool

    def __str__(self) -> str:
        return f"workers={self.workers}, config={self.config!r}{', through bytes' if self.codec else ''}"


def _pick(draws: Draws, options: Any) -> Any:
    return options[draws.below(len(options))]


def draw_place(draws: Draws) -> Place:
    """Workers and a config for them."""
    workers = _pick(draws, (2, 4, 3, 5, 4, 3, 2, 1))
    mesh = _mesh(draws, workers)
    names = [name for name in SIGNALS[:-1] if draws.below(6) != 5]
    if not names:
        return Place(workers, {"mesh": mesh}, codec=False)
    rules = {name: _rule(draws, mesh) for name in names}
    for name in names:
        if draws.below(3) == 2:
            rules[name]["backward"] = _pick(draws, names)
    config: dict[str, Any] = {"mesh": mesh, "sharding_config": rules}
    if draws.below(5) == 4 and _fits({"sharding_config": rules}, workers):
        del config["mesh"]
    return Place(workers, config, codec=draws.below(6) == 5)


def _fits(config: dict[str, Any], workers: int) -> bool:
    """Whether a config without a mesh of its own is valid."""
    try:
        known = Config.from_plain(config)
        axes = known.mesh_for(workers)
        resolve(known, uniform_mesh(1, axes, tuple(range(math.prod(axes.values())))))
    except ConfigError:
        return False
    return True


def _mesh(draws: Draws, workers: int) -> dict[str, int]:
    if draws.below(2):
        pairs = [(a, b) for a in range(1, workers + 1) for b in range(1, workers + 1) if a * b <= workers]
        pairs.sort(key=lambda pair: -min(pair) * 10 - pair[0] * pair[1])
        sizes = _pick(draws, pairs)
        return dict(zip(_pick(draws, AXES), sizes, strict=True))
    return {_pick(draws, ("data", "model", "x")): workers - draws.below(min(2, workers))}


def _rule(draws: Draws, mesh: dict[str, int]) -> dict[str, Any]:
    form = _pick(draws, FORMS)
    if form == "hint":
        return {"compile": True}
    if form == "shard":
        return {"shard": {"axis": _pick(draws, (0, 1, 2)), "workers": _block(draws, mesh)}}
    rule: dict[str, Any] = {"strategy": form}
    if form == "replicate":
        if draws.below(2):
            rule["mesh_axis"] = _pick(draws, tuple(mesh))
        return rule
    own = {"data_parallel": "data", "tensor_parallel": "model"}[form]
    axis = own if own in mesh and draws.below(3) else _pick(draws, tuple(mesh))
    if axis != own:
        rule["mesh_axis"] = axis
    if form == "data_parallel":
        if draws.below(2):
            rule["batch_split"] = mesh[axis]
        return rule
    dimension = _pick(draws, (0, 1, None, 2))
    if dimension is not None:
        rule["dimension"] = dimension
    if draws.below(2):
        rule["replicas"] = math.prod(mesh.values()) // mesh[axis]
    return rule


def _block(draws: Draws, mesh: dict[str, int]) -> list[int]:
    """Some positions on each axis, and all their combinations."""
    chosen = []
    for size in mesh.values():
        positions = [at for at in range(size) if draws.below(3) != 2]
        chosen.append(positions or [draws.below(size)])
    sizes = list(mesh.values())
    ranks = []
    for coordinates in itertools.product(*chosen):
        rank = 0
        for size, at in zip(sizes, coordinates, strict=True):
            rank = rank * size + at
        ranks.append(rank)
    return ranks[::-1] if draws.below(2) else ranks
