"""The policy of a session: what its rules ask for, resolved on its mesh, for each signal one request per mesh axis.

A request concerns one mesh axis. Signals nest: the innermost signal that says something about an axis decides it. If
several rules apply to one signal, a name takes precedence over a pattern, a longer pattern over a shorter one, and a
later rule over an earlier one. How requests bind to instructions is decided by the planner (`planner.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Final

from gt.errors import ConfigError
from gt.ir.spec import Spec
from gt.sharding.block_grid import deal
from gt.sharding.config_meshes import show_mesh, stage_positions
from gt.sharding.config_turns import batches, rules_in_turns
from gt.sharding.device_names import KINDS
from gt.sharding.interned import Interned
from gt.sharding.placement import PINNED_AXIS, At, Layout, Mesh, Placement, Shard
from gt.sharding.signal_patterns import NamePattern, is_pattern, literal_length
from gt.sharding.yaml_document import Key, show_key
from gt.turns import finish

if TYPE_CHECKING:
    from gt.ir.instruction import Tag
    from gt.sharding.config import Config, Rule

MAX_MEMO = 10_000
DETERMINISTIC_KINDS: Final = frozenset(("cpu", "torch:cpu"))
"""The kinds of workers that compute a deterministic session: by NumPy's kernels, both."""
DEVICE: Final = "device"
"""What stands for a strategy where a rule pins a signal to one worker."""
NAMES_PER_TURN: Final = 256
"""Names of rules that are looked at in one turn."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestedPlacement(metaclass=Interned):
    """What one rule asks for on one mesh axis.

    `strategy` is one of the config's, or 'shard' for the explicit form. `dimension` is that of the weight (tensor_parallel;
    None: the planner chooses), of the sequence (sequence_parallel) or of the tensor (shard). `weights` says which positions
    take part (shard; None: all), `stages` the position of each stage on the axis (pipeline_parallel), `position` the one position
    that takes part (DEVICE).
    """

    strategy: str
    where: str
    dimension: int | None = None
    weights: tuple[int, ...] | None = None
    stages: tuple[int, ...] | None = None
    position: int | None = None


RequestedPlacements = tuple[RequestedPlacement | None, ...]


@dataclass(slots=True)
class Policy:
    """The requests of a session's rules on its mesh."""

    mesh: Mesh
    table: dict[str, RequestedPlacements]
    backward: dict[str, str] = field(default_factory=dict)
    """For a rule with `backward:`, the rule that applies to the gradients in its place."""
    microbatches: int = 1
    schedule: str = "1f1b"
    deterministic: int = 0
    """The number of blocks of a deterministic session, whose values are the same on any number of workers; 0 for others."""
    max_plan: float = inf
    """The most seconds that a plan should take, where the rules of its signals say nothing."""
    max_plans: dict[str, float] = field(default_factory=dict)
    """The same, by rule."""
    priorities: dict[str, str] = field(default_factory=dict)
    """By rule, the class of plans that compute its signal: 'interactive', 'normal' or 'batch'."""
    memo: dict[tuple[tuple[str, ...], bool], RequestedPlacements] = field(default_factory=dict)
    patterns: list[NamePattern] | None = None
    """The names of rules that stand for several signals, the longest last; None: not looked for yet."""
    positions: dict[int, dict[int, int]] | None = None
    """What `stages` says; None: not looked for yet."""

    def copy(self, mesh: Mesh) -> Policy:
        """The same on another mesh of equal workers: what is decided in one has no effect on the other."""
        return replace(self, mesh=mesh, table=dict(self.table), memo={})

    def requests(self, path: tuple[str, ...], *, backward: bool = False) -> RequestedPlacements:
        """For each mesh axis, the request of a path of signals (outermost first), or None. `backward` selects those for
        gradients."""
        found = self.memo.get((path, backward))
        if found is None:
            merged: list[RequestedPlacement | None] = [None] * len(self.mesh.sizes)
            for name in self._rules_along(path):
                rule = self.backward.get(name, name) if backward else name
                for axis, request in enumerate(self.table[rule]):
                    if request is not None:
                        merged[axis] = request
            if len(self.memo) > MAX_MEMO:
                self.memo.clear()
            found = self.memo[path, backward] = tuple(merged)
        return found

    @property
    def cuts(self) -> bool:
        """Whether some plan may not take as long as it likes."""
        return bool(self.max_plans) or self.max_plan < inf

    def seconds_for(self, tag: Tag) -> float:
        """The most seconds that a plan with an instruction of this tag should take: what the innermost signal says that says
        something."""
        found = self.max_plan
        for name in self._rules_along(tag.signal) if self.max_plans else ():
            rule = self.backward.get(name, name) if tag.phase == "backward" else name
            found = self.max_plans.get(rule, found)
        return found

    def priority_for(self, tag: Tag) -> str | None:
        """The class of a plan of instructions of this tag: what the innermost signal says that says something; None for the
        session's own."""
        found: str | None = None
        for name in self._rules_along(tag.signal):
            rule = self.backward.get(name, name) if tag.phase == "backward" else name
            found = self.priorities.get(rule, found)
        return found

    def rule_of(self, tag: Tag) -> str:
        """Where the rule for a tag is written; empty if no rule applies."""
        requests = self.requests(tag.signal, backward=tag.phase == "backward")
        return next((request.where for request in requests if request is not None), "")

    @property
    def has_auto(self) -> bool:
        """Whether some `auto` rule is still undecided."""
        return any(
            request is not None and request.strategy == "auto"
            for requests in self.table.values()
            for request in requests
        )

    def auto_rules(self, path: tuple[str, ...]) -> list[str]:
        """The undecided `auto` rules for a path of signals."""
        return [
            name
            for name in self._rules_along(path)
            if any(request is not None and request.strategy == "auto" for request in self.table[name])
        ]

    def spelled(self, name: str) -> str:
        """What a rule asks for, axis by axis, as text."""
        found = []
        for axis, request in zip(self.mesh.axes, self.table[name], strict=True):
            if request is not None:
                dimension = "" if request.dimension is None else f" dimension {request.dimension}"
                found.append(f"{request.strategy}{dimension} on {axis}")
        return ", ".join(found) or "no strategy"

    def settle_rest(self, name: str) -> None:
        """Let an `auto` rule that is still undecided ask for nothing."""
        requests = self.table[name]
        self.settle(
            name, tuple(None if request is not None and request.strategy == "auto" else request for request in requests)
        )

    def settle(self, name: str, requests: RequestedPlacements) -> None:
        """Decide an `auto` rule."""
        self.table[name] = requests
        self.memo.clear()

    def stages(self) -> dict[int, dict[int, int]]:
        """For a mesh axis with a pipeline's stages, the stage at each position."""
        return _stages_of(self.table.values()) if self.positions is None else self.positions

    def _rules_along(self, path: tuple[str, ...]) -> Iterator[str]:
        """The names of the rules for each signal of a path, from the outermost on, for each in rising precedence."""
        if not self.table:
            return
        if self.patterns is None:
            self.patterns = [
                NamePattern.of(name) for name in sorted(filter(is_pattern, self.table), key=literal_length)
            ]
        for end in range(1, len(path) + 1):
            yield from self._rules_for(path[end - 1], "/".join(path[:end]), self.patterns)

    def _rules_for(self, signal: str, path: str, patterns: Sequence[NamePattern]) -> Iterator[str]:
        """The names of the rules for the last signal of a path, in rising precedence."""
        texts = (signal,) if path == signal else (signal, path)
        nested, plain = [text for text in texts if "/" in text], [text for text in texts if "/" not in text]
        found = [name for name, slashes, match in patterns if any(map(match, nested if slashes else plain))]
        yield from found
        for name in texts:
            if name in self.table and name not in found:
                yield name

    def put_layout(self, path: tuple[str, ...], spec: Spec) -> Layout:
        """The layout of a tensor that is put in a path of signals."""
        layout: list[Placement] = list(self.mesh.replicated)
        if self.mesh.axes == (PINNED_AXIS,):
            layout = [At(0)]
        for axis, request in enumerate(self.requests(path)):
            if request is None:
                continue
            if request.position is not None:
                layout[axis] = At(request.position)
                continue
            dimension, weights = request.dimension, request.weights
            if request.strategy in ("data_parallel", "fully_sharded"):
                dimension, weights = 0, None
            elif request.strategy not in ("shard", "sequence_parallel"):
                continue
            if dimension is not None and dimension < spec.ndim:
                layout[axis] = Shard(dimension, weights)
        return tuple(layout)


def _stages_of(table: Iterable[RequestedPlacements]) -> dict[int, dict[int, int]]:
    """For a mesh axis with a pipeline's stages, the stage at each position by the first rule that says it."""
    found: dict[int, dict[int, int]] = {}
    for requests in table:
        for axis, request in enumerate(requests):
            if request is not None and request.stages and axis not in found:
                found[axis] = {position: stage for stage, position in enumerate(request.stages)}
    return found


def resolve(config: Config, mesh: Mesh, names: Sequence[Sequence[str]] | None = None) -> Policy:
    """The policy of a config on `mesh`. Raises `ConfigError` with file, line and key.

    `names` are those of each rank as a device, its kind (as 'cpu' or 'torch:cpu') first; None stands for workers that need not
    exist, which are of any kind asked for.
    """
    return finish(resolve_in_turns(config, mesh, names))


def resolve_in_turns(
    config: Config, mesh: Mesh, names: Sequence[Sequence[str]] | None = None
) -> Generator[None, None, Policy]:
    """The same, some rules in each turn."""
    kinds = None if names is None else [each[0] for each in names]
    table: dict[str, RequestedPlacements] = {}
    policy = Policy(mesh, table, deterministic=config.block_count, max_plan=config.max_plan or inf)
    for batch in rules_in_turns(config.each(), len(mesh.members)):
        for key, rule in batch:
            _add(policy, key, rule)
        yield
    if policy.deterministic and kinds is not None and {*kinds} - DETERMINISTIC_KINDS:
        there = " and ".join(sorted({*kinds}))
        text = f"only CPU workers compute the same bits in any number, on the mesh are those of the kind {there}"
        raise ConfigError(
            f"{config.mesh_where}: deterministic: {text}; allowed: CPU workers, or no deterministic: true"
        )
    for batch in rules_in_turns(config.each(), len(mesh.members)):
        for key, rule in batch:
            if rule.device and kinds is not None and names is not None:
                signal = str(key[1])
                if rule.device in KINDS and len(names) > 1 and mesh.axes != (PINNED_AXIS,):
                    table[signal] = _of_kind(key, rule, mesh, kinds, table[signal])
                else:
                    table[signal] = _on_worker(rule, mesh, names, table[signal])
        yield
    if policy.deterministic:
        for signals in batches(list(table), NAMES_PER_TURN):
            for signal in signals:
                table[signal] = tuple(request and _dealt(request, policy.deterministic) for request in table[signal])
            yield
    yield from _find_patterns(policy)
    return policy


def _add(policy: Policy, key: Key, rule: Rule) -> None:
    """Add what a rule asks for."""
    signal, table, mesh = str(key[1]), policy.table, policy.mesh
    before = table.get(signal, (None,) * len(mesh.sizes))
    table[signal] = tuple(new or old for new, old in zip(_requests(key, rule, mesh), before, strict=True))
    if rule.backward:
        policy.backward[signal] = rule.backward
    if rule.max_plan is not None:
        policy.max_plans[signal] = rule.max_plan
    if rule.priority is not None:
        policy.priorities[signal] = rule.priority
    if rule.strategy == "pipeline_parallel":
        policy.microbatches = rule.microbatches or 1
        policy.schedule = rule.schedule or "1f1b"


def _find_patterns(policy: Policy) -> Generator[None, None, None]:
    """Find the patterns among the names of rules, and the stages, before they are asked for."""
    found: list[str] = []
    positions: dict[int, dict[int, int]] = {}
    for names in batches(policy.table, NAMES_PER_TURN):
        found += filter(is_pattern, names)
        positions = {**_stages_of(policy.table[name] for name in names), **positions}
        yield
    patterns = []
    for name in sorted(found, key=literal_length):
        patterns.append(NamePattern.of(name))
        yield
    policy.patterns, policy.positions = patterns, positions


def _dealt(request: RequestedPlacement, blocks: int) -> RequestedPlacement:
    """Explicitly named workers, each with whole blocks."""
    if request.weights is None:
        return request
    shares = iter(deal(blocks, sum(map(bool, request.weights))))
    return replace(request, weights=tuple(next(shares) if weight else 0 for weight in request.weights))


def _requests(key: Key, rule: Rule, mesh: Mesh) -> RequestedPlacements:
    none: list[RequestedPlacement | None] = [None] * len(mesh.sizes)
    if rule.shard is not None:
        return _block((*key, "shard", "workers"), rule, mesh, rule.shard.axis, rule.shard.workers)
    if rule.strategy is None:
        return tuple(none)
    dimension = 1 if rule.strategy == "sequence_parallel" and rule.dimension is None else rule.dimension
    if rule.axis is None:
        return (RequestedPlacement(rule.strategy, rule.where, dimension),) * len(mesh.sizes)
    if rule.axis not in mesh.axes:
        raise ConfigError(
            f"{rule.where}: {show_key(key)}: {rule.strategy} needs the mesh axis {rule.axis!r}; "
            f"allowed: {', '.join(mesh.axes)}, by mesh_axis"
        )
    stages = None if rule.stages is None else stage_positions(key, rule, _axes(mesh))
    none[mesh.axes.index(rule.axis)] = RequestedPlacement(rule.strategy, rule.where, dimension, stages=stages)
    return tuple(none)


def _block(key: Key, rule: Rule, mesh: Mesh, dimension: int, workers: Collection[int]) -> RequestedPlacements:
    """Named workers as weights on each axis, for a tensor's dimension: other workers have weight 0."""
    chosen = set(workers)
    coordinates = [mesh.coordinates(rank) for rank in sorted(chosen)]
    used = [{at[axis] for at in coordinates} for axis in range(len(mesh.sizes))]
    grid = {mesh.rank(at) for at in itertools.product(*used)}
    if grid != chosen:
        raise ConfigError(
            f"{rule.where}: {show_key(key)}: {sorted(chosen)} is no block of the mesh {show_mesh(_axes(mesh))}; "
            f"allowed: all combinations of some positions on each axis, such as {sorted(grid)}"
        )
    requests: list[RequestedPlacement | None] = []
    for axis, size in enumerate(mesh.sizes):
        weights = tuple(mesh.weights[axis][at] if at in used[axis] else 0 for at in range(size))
        requests.append(
            RequestedPlacement("shard", rule.where, dimension, None if weights == mesh.weights[axis] else weights)
        )
    return tuple(requests)


def _of_kind(
    key: Key, rule: Rule, mesh: Mesh, kinds: Sequence[str], requests: RequestedPlacements
) -> RequestedPlacements:
    """The requests of a signal, restricted to the workers of one kind.

    If all workers are of that kind, nothing changes. Otherwise dimension 0 is sharded over the workers of that kind
    along the axes on which the kinds differ; a strategy still decides the other axes.
    """
    key = (*key, "device")
    chosen = [rank for rank, kind in enumerate(kinds) if kind == rule.device]
    if not chosen:
        there = " and ".join(sorted(set(kinds)))
        text = f"no worker of the mesh {show_mesh(_axes(mesh))} is of the kind {rule.device}"
        raise ConfigError(f"{rule.where}: {show_key(key)}: {text}; allowed: {there}")
    if len(chosen) == len(kinds):
        return requests
    block = _block(key, rule, mesh, 0, chosen)
    if not any(requests):
        return block
    return tuple(
        new if new is not None and new.weights is not None else old for new, old in zip(block, requests, strict=True)
    )


def _on_worker(
    rule: Rule, mesh: Mesh, names: Sequence[Sequence[str]], requests: RequestedPlacements
) -> RequestedPlacements:
    """The requests of a signal that is pinned to one worker: to the first rank of that name, whatever strategy it has besides.

    Where there is none of it any more, as after a loss, or no other, nothing is pinned.
    """
    rank = next((rank for rank, each in enumerate(names) if rule.device in each), None)
    if rank is None or len(names) == 1:
        return requests
    return tuple(RequestedPlacement(DEVICE, rule.where, position=at) for at in mesh.coordinates(rank))


def _axes(mesh: Mesh) -> dict[str, int]:
    return dict(zip(mesh.axes, mesh.sizes, strict=True))
