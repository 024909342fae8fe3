"""Which mesh a config asks for, given or derived from its rules, and whether mesh and rules agree.

Pure arithmetic on a config. `gt/sharding/config.py` reads configs; the dispatcher decides what a rule means on its axis.
Contradictions are refused here before anything runs, with file, line, key and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.errors import ConfigError

from .config_turns import rules_in_turns
from .strategies import AUTO_SIZE
from .yaml_document import Key, Mistake, show, show_key

if TYPE_CHECKING:
    from .config import Config, Rule

OUTERMOST_FIRST: Final = (
    ("pipeline_parallel",),
    ("data_parallel",),
    ("fully_sharded",),
    ("expert_parallel",),
    ("sequence_parallel", "tensor_parallel"),
)
"""The strategies by how much they exchange, the most last: a stage sends activations on once a microbatch; gradients are
summed once a step; sharded weights are gathered twice a step and their gradients scattered; tokens go to experts and back in
each layer that has them; and tensor-parallel activations are summed in every layer and phase. A derived mesh has its axes in
this order, and each mesh has the workers along its busiest axes close to each other (`busiest_last`)."""
_OUTSIDE: Final = {strategy: place for place, group in enumerate(OUTERMOST_FIRST) for strategy in group}


def mesh_in_turns(config: Config, workers: int) -> Generator[None, None, dict[str, int]]:
    """The named axes over some of so many `workers`. Raises ConfigError.

    In each turn it looks at some rules."""
    if workers < 1:
        raise ValueError(f"a mesh needs at least one worker, not {workers}")
    rules = [] if config.mesh is not None else (yield from _strategies(config))
    if config.mesh is not None:
        mesh = _given(config.mesh, workers, config.block_count)
    else:
        mesh = yield from _derive(config, rules, workers)
    size = math.prod(mesh.values())
    if size > workers:
        where = config.mesh_where if config.mesh is not None else rules[0][1].where
        least = "at least " if config.is_elastic else ""
        text = f"{show_mesh(config.mesh or mesh)} takes {least}{size} workers, there {_are_workers(workers)}"
        raise ConfigError(f"{where}: mesh: {text}; allowed: a mesh that takes at most {workers}")
    blocks = config.block_count
    if blocks and max(mesh.values()) > blocks:
        where = config.mesh_where if config.mesh is not None else rules[0][1].where
        text = f"{show_mesh(mesh)} has an axis of {max(mesh.values())}, which cannot share {blocks} blocks"
        raise ConfigError(f"{where}: mesh: {text}; allowed: axes of at most {blocks}, or more blocks:")
    for batch in rules_in_turns(config.each(), size):
        for key, rule in batch:
            _check_on_mesh(key, rule, mesh, workers)
        yield
    return mesh


def busiest_last(config: Config, mesh: Mapping[str, int]) -> Generator[None, None, tuple[int, ...] | None]:
    """The places of the mesh's axes in the order of what is exchanged along them, the most last. None if a rule names workers
    (`shard`, `stages`), which are numbered as they stand, or is `auto`, whose strategy is not known yet.

    An axis is as busy as the busiest strategy (`OUTERMOST_FIRST`) of the rules that speak of it, and least busy without one. Axes
    that are equally busy keep their order. In each turn it looks at some rules.
    """
    busy = dict.fromkeys(mesh, -1)
    for batch in rules_in_turns(config.each()):
        for _, rule in batch:
            if rule.shard is not None or rule.stages is not None or rule.strategy == "auto":
                return None
            if rule.axis in busy:
                busy[rule.axis] = max(busy[rule.axis], _OUTSIDE.get(str(rule.strategy), -1))
        yield
    found = list(busy.values())
    return tuple(sorted(range(len(found)), key=found.__getitem__))


def _given(mesh: Mapping[str, int | str], workers: int, blocks: int) -> dict[str, int]:
    """The mesh that a config gives, on so many workers: what is `auto` is as large as these and the `blocks` (0: none) allow."""
    most = max(1, workers // least_size(mesh))
    return {axis: size if isinstance(size, int) else min(most, blocks or most) for axis, size in mesh.items()}


def least_size(mesh: Mapping[str, int | str]) -> int:
    """The fewest workers that a mesh takes, as a config gives it."""
    return math.prod(size for size in mesh.values() if isinstance(size, int))


def _check_on_mesh(key: Key, rule: Rule, mesh: Mapping[str, int], workers: int) -> None:
    """Raise ConfigError if a rule does not fit the mesh that was found."""
    size = math.prod(mesh.values())
    copies = size // mesh[str(rule.axis)] if rule.replicas else None
    if rule.replicas != copies:
        raise _ask_for_mesh(rule, f"replicas is {rule.replicas}, but {show_mesh(mesh)} holds {copies} copies")
    for inner, index in _named_workers(rule):
        if index >= size:
            outside = f"there {_are_workers(workers)}" if size == workers else f"the mesh is {show_mesh(mesh)}"
            text = f"{show_key((*key, *inner))}: there is no worker {index}, {outside}"
            raise ConfigError(f"{rule.where}: {text}; allowed: 0 to {size - 1}")
    if rule.stages is not None:
        stage_positions(key, rule, mesh)


class DevicePins(NamedTuple):
    """The devices that a config's rules name, each with a line that does, and whether its rules say nothing else of workers.

    Then what no rule pins is computed by one worker, and what is pinned to a device by one of those with that name. Otherwise the
    mesh follows from the rest, as if no rule pinned anything.
    """

    devices: dict[str, str]
    alone: bool


def device_pins(config: Config) -> Generator[None, None, DevicePins]:
    """The devices that a config names. In each turn it looks at some rules."""
    devices: dict[str, str] = {}
    alone = config.mesh is None
    for batch in rules_in_turns(config.each()):
        for key, rule in batch:
            if rule.device is not None:
                devices.setdefault(rule.device, f"{rule.where}: {show_key((*key, 'device'))}")
            alone = alone and rule.strategy is None and rule.shard is None
        yield
    return DevicePins(devices, alone)


def workers_needed(config: Config) -> int:
    """The fewest workers that a config needs: for its mesh, the parts of a batch, and the largest worker index."""
    rules = [rule for _, rule in config.each()]
    named = [index + 1 for rule in rules for _, index in _named_workers(rule)]
    return max([config.least_mesh, *named, *(rule.batch_split or 1 for rule in rules)])


def stage_positions(key: Key, rule: Rule, mesh: Mapping[str, int]) -> tuple[int, ...]:
    """The position of each stage of a pipeline on its mesh axis, where all workers of the stage are. Raises ConfigError."""
    axis = str(rule.axis)
    inner = math.prod(list(mesh.values())[list(mesh).index(axis) + 1 :])
    workers: dict[int, list[int]] = {}
    for rank in range(math.prod(mesh.values())):
        workers.setdefault(rank // inner % mesh[axis], []).append(rank)
    positions = {tuple(ranks): at for at, ranks in workers.items()}
    found = []
    for index, stage in enumerate(rule.stages or ()):
        at = positions.get(tuple(sorted(stage)))
        if at is None:
            name = show_key((*key, "stages", index))
            text = f"{name}: {list(stage)} are not the workers at one position of the axis {axis} of {show_mesh(mesh)}"
            some = ", ".join(str(list(ranks)) for ranks in list(positions)[:8]) + ", …" * (len(positions) > 8)
            raise ConfigError(f"{rule.where}: {text}; allowed: {some}, in any order")
        found.append(at)
    return tuple(found)


def several_auto(mesh: Mapping[str, int | str]) -> Iterator[Mistake]:
    """The axes that are `auto` beside another one."""
    first, *others = [axis for axis, size in mesh.items() if size == AUTO_SIZE] or [""]
    for axis in others:
        yield Mistake(("mesh", axis), f"is auto, as is {first}", "auto for one axis, an integer >= 1 for each other")


def contradictions(key: Key, rule: Rule, mesh: Mapping[str, int | str]) -> Iterator[Mistake]:
    """Where a rule contradicts the mesh that the config gives."""
    auto = next((axis for axis, size in mesh.items() if size == AUTO_SIZE), None)
    if auto is not None and rule.stages is not None:
        text = f"name workers, of which the mesh {show_mesh(mesh)} may have more or fewer"
        yield Mistake((*key, "stages"), text, "a mesh of integers")
    if rule.axis is None:
        return
    if rule.axis not in mesh:
        option = "mesh_axis" if rule.mesh_axis else "strategy"
        text = f"the mesh {show_mesh(mesh)} has no axis {show(rule.axis)}"
        allowed = ", ".join(mesh) if rule.mesh_axis else f"a mesh with that axis, or mesh_axis: {' or '.join(mesh)}"
        yield Mistake((*key, option), text, allowed)
        return
    size = mesh[rule.axis]
    if auto is not None:
        yield from _contradicts_auto(key, rule, mesh, auto)
        return
    if rule.batch_split not in (None, size):
        text = f"{rule.batch_split} contradicts the mesh {show_mesh(mesh)}, whose axis {rule.axis} has size {size}"
        yield Mistake((*key, "batch_split"), text, str(size))
    copies = least_size(mesh) // int(size)
    if rule.replicas not in (None, copies):
        groups = f"{copies} {'copy' if copies == 1 else 'copies'} of its axis {rule.axis}"
        text = f"{rule.replicas} contradicts the mesh {show_mesh(mesh)}, which holds {groups}"
        yield Mistake((*key, "replicas"), text, str(copies))


def _contradicts_auto(key: Key, rule: Rule, mesh: Mapping[str, int | str], auto: str) -> Iterator[Mistake]:
    """Where a rule gives a number that follows from the workers that there are."""
    size, copies = mesh[str(rule.axis)], least_size(mesh)
    follows = f"of the mesh {show_mesh(mesh)} follows from the workers"
    if rule.batch_split is not None and rule.axis == auto:
        yield Mistake((*key, "batch_split"), f"the size of the axis {auto} {follows}", "no batch_split")
    elif rule.batch_split not in (None, size):
        text = f"{rule.batch_split} contradicts the mesh {show_mesh(mesh)}, whose axis {rule.axis} has size {size}"
        yield Mistake((*key, "batch_split"), text, str(size))
    if rule.replicas is not None and rule.axis != auto:
        yield Mistake((*key, "replicas"), f"the number of copies {follows}", "no replicas")
    elif rule.replicas not in (None, copies):
        groups = f"{copies} {'copy' if copies == 1 else 'copies'} of its axis {rule.axis}"
        text = f"{rule.replicas} contradicts the mesh {show_mesh(mesh)}, which holds {groups}"
        yield Mistake((*key, "replicas"), text, str(copies))


def show_mesh(mesh: Mapping[str, int | str]) -> str:
    """A mesh as the YAML writes it."""
    return "{" + ", ".join(f"{axis}: {size}" for axis, size in mesh.items()) + "}"


def _derive(config: Config, rules: list[tuple[Key, Rule]], workers: int) -> Generator[None, None, dict[str, int]]:
    """The mesh that follows from the rules: an axis for each that they speak of, with the size that they give. An axis without
    a size takes the remaining workers.

    Stages are outermost, and their workers are all workers. If a stage has several workers and no other rule names an axis,
    these get the axis `data`. Copies of a tensor-parallel group that no other axis separates get the axis `replicas`.
    """
    if not rules:
        placed = False
        for batch in rules_in_turns(config.each()):
            placed = placed or any(rule.strategy or rule.shard for _, rule in batch)
            yield
        return {"workers": workers if placed else 1}
    mesh = yield from _stages(rules, workers)
    if mesh:
        (axis, count), width = next(iter(mesh.items())), len((rules[0][1].stages or ((),))[0])
        workers = count * width
    sizes: dict[str, int | None] = {**mesh}
    for batch in rules_in_turns(rules):
        for key, rule in batch:
            name, size = str(rule.axis), _size(key, rule, workers)
            known = sizes.setdefault(name, size)
            if None not in (known, size) and known != size:
                before = f"by the rules before it {known}"
                raise _ask_for_mesh(rule, f"the mesh axis {name} would have size {size}, {before}")
            sizes[name] = size if known is None else known
        yield
    free = [name for name, size in sizes.items() if size is None]
    if len(free) > 1:
        first = next(rule for _, rule in rules if rule.axis in free)
        raise _ask_for_mesh(first, f"nothing says how large the mesh axes {' and '.join(free)} are")
    outer = mesh
    mesh = {name: size or 1 for name, size in sizes.items()}
    rest = max(1, workers // math.prod(mesh.values()))
    if free:
        mesh[free[0]] = rest
    elif rest > 1 and any(rule.replicas for _, rule in rules):
        mesh = {**outer, "replicas": rest} | mesh
    elif outer and len(mesh) == 1 and rest > 1:
        mesh["data" if axis != "data" else "replicas"] = rest
    if outer and math.prod(mesh.values()) != workers:
        each = "a worker" if width == 1 else f"{width} workers"
        raise _ask_for_mesh(rules[0][1], f"each of {count} stages has {each}, but the rules make {show_mesh(mesh)}")
    return mesh


def _stages(rules: list[tuple[Key, Rule]], workers: int) -> Generator[None, None, dict[str, int]]:
    """The axis of the pipelines, as large as the number of stages; nothing without a pipeline. Pipelines are the first of the
    rules."""
    if rules[0][1].stages is None:
        return {}
    key, first = rules[0]
    width = len((first.stages or ((),))[0])
    stages: set[frozenset[int]] = set()
    for batch in rules_in_turns(rules):
        for _, rule in batch:
            stages.update(map(frozenset, rule.stages or ()))
            if not {*map(len, rule.stages or ())} <= {width}:
                raise _ask_for_mesh(rule, f"its stages have other numbers of workers than those of {show_key(key)}")
        yield
    if len(stages) * width > workers:
        text = f"{show_key((*key, 'stages'))}: {len(stages)} stages of {width} take {len(stages) * width} workers"
        raise ConfigError(
            f"{first.where}: {text}, there {_are_workers(workers)}; allowed: stages that take at most {workers}"
        )
    return {str(first.axis): len(stages)}


def _strategies(config: Config) -> Generator[None, None, list[tuple[Key, Rule]]]:
    """The rules that make a mesh axis, outermost first."""
    groups: list[list[tuple[Key, Rule]]] = [[] for _ in OUTERMOST_FIRST]
    for batch in rules_in_turns(config.each()):
        for each in batch:
            if (place := _OUTSIDE.get(str(each[1].strategy))) is not None:
                groups[place].append(each)
        yield
    return [each for group in groups for each in group]


def _size(key: Key, rule: Rule, workers: int) -> int | None:
    """The size that a rule gives its axis, None if it gives none."""
    if rule.batch_split and rule.batch_split > workers:
        text = f"{rule.batch_split} parts need as many workers, there {_are_workers(workers)}"
        raise ConfigError(f"{rule.where}: {show_key((*key, 'batch_split'))}: {text}; allowed: 1 to {workers}")
    if rule.replicas and workers % rule.replicas:
        text = f"there {_are_workers(workers)}, which {rule.replicas} does not divide"
        divisors = ", ".join(str(n) for n in range(1, workers + 1) if workers % n == 0)
        raise ConfigError(f"{rule.where}: {show_key((*key, 'replicas'))}: {text}; allowed: {divisors}")
    return rule.batch_split or (workers // rule.replicas if rule.replicas else None)


def _named_workers(rule: Rule) -> Iterator[tuple[Key, int]]:
    """The workers that a rule names, each with its key."""
    for position, index in enumerate(rule.shard.workers if rule.shard else ()):
        yield ("shard", "workers", position), index
    for stage, indexes in enumerate(rule.stages or ()):
        for position, index in enumerate(indexes):
            yield ("stages", stage, position), index


def _ask_for_mesh(rule: Rule, text: str) -> ConfigError:
    return ConfigError(f"{rule.where}: mesh: {text}; allowed: say it, for example mesh: {{data: 2, model: 2}}")


def _are_workers(workers: int) -> str:
    return "is 1 worker" if workers == 1 else f"are {workers} workers"
