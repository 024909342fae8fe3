"""What a program becomes when it is hot: its chains and bands are one action each, and products that are read late run beside
the rest.

That changes the time and the memory that a program takes, and no bit of what it makes; so it may happen at any run, and
where something fails or is poison the steps are there as before, in an order in which they can run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from . import generated, lowering, strips
from .aside import Group, set_aside
from .backend import Backend
from .bands import Band, Parts, bands
from .call import Call
from .crew import Crew
from .fusion import Chain, fuse
from .program import Action, Program, Slots, Step, action_of

HOT: Final = 3
"""The run at which a program is fused: from then on it saves more than fusing takes. Nothing changes but the time. (On a GPU it
is the first: there rows are added up in an order of their own.)"""


class Executor(NamedTuple):
    """Who computes chains: which calls they may have, which of them pay, and what runs one (None: its steps)."""

    able: Callable[[Call], bool]
    worth: Callable[[Chain], bool]
    compile: Callable[[Chain, tuple[int, ...], Action], Action | None]
    loose: bool = False
    """Whether it takes chains of loose forms."""
    crew: Crew | None = None
    """Whose other lanes may take what is read late."""


def on_cpu(crew: Crew) -> Executor:
    """NumPy's own functions over strips of rows."""
    return Executor(
        lowering.able,
        lambda chain: strips.worth(chain, crew),
        lambda chain, dead, by_steps: strips.compile_chain(chain, crew, dead, by_steps),
        crew=crew,
    )


def on_gpu(xp: Any) -> Executor:
    """A kernel written for each chain."""
    return Executor(
        generated.able,
        generated.worth,
        lambda chain, dead, by_steps: generated.compile_chain(chain, xp, dead, by_steps),
        loose=True,
    )


def executor(backend: Backend) -> Executor:
    """The one that a backend has."""
    return on_gpu(backend.xp) if backend.crew is None else on_cpu(backend.crew)


def fused(program: Program, executor: Executor) -> Program:
    """The same program with its chains as one action each. Poison and errors still go step by step."""
    wanted = {slot for _, slot in program.survivors + program.rehomed}
    blocks: list[list[Step]] = []
    actions: list[list[Action]] = []
    starts: list[Sequence[int]] = []
    for number in range(len(program.blocks) - 1, -1, -1):
        block, acts, firsts = _fused_block(program.blocks[number], wanted, executor)
        blocks.append(block)
        actions.append(acts)
        starts.append(firsts)
        wanted.update(slot for step in block for slot in step.reads)
        if number:
            move = program.moves[number - 1]
            wanted.update((move.source, move.target))
    return replace(program, blocks=blocks[::-1], actions=actions[::-1], starts=starts[::-1])


def _fused_block(steps: list[Step], wanted: set[int], executor: Executor) -> tuple[list[Step], list[Action], list[int]]:
    """The steps of a block in the order in which they run as chains, the actions, and where in the steps each begins."""
    order = fuse(steps, wanted, executor.able, executor.worth, loose=executor.loose)
    whole = order if executor.crew is None else bands(steps, order, executor.crew)
    groups = _grouped(steps, whole, wanted, executor)
    if executor.crew is not None:
        groups = set_aside(groups, wanted, executor.crew)
    starts = list(itertools.accumulate((len(group.steps) for group in groups), initial=0))[:-1]
    return [step for group in groups for step in group.steps], [group.action for group in groups], starts


def _grouped(
    steps: list[Step], order: Sequence[Chain | int | Band], wanted: set[int], executor: Executor
) -> list[Group]:
    """Steps in the order in which they run, those of a chain or a band together."""
    if all(isinstance(each, int) for each in order):
        return [Group(step.action, [step]) for step in steps]
    flat = [steps[at] for each in order for at in ((each,) if isinstance(each, int) else each.steps)]
    dying = {slot for step in steps for slot in step.dead}
    dead: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for step in reversed(flat):
        touched = dict.fromkeys((*step.tensors, step.writes))
        dead.append(tuple(slot for slot in touched if slot in dying and slot not in seen))
        seen.update(touched)
    flat = [
        replace(step, action=action_of(step.kernel, step.reads, step.writes, dies, step.into), dead=dies)
        for step, dies in zip(flat, reversed(dead), strict=True)
    ]
    groups: list[Group] = []
    at = 0
    for each in order:
        members = flat[at : at + (1 if isinstance(each, int) else len(each.steps))]
        compiled: Action | None = None
        if isinstance(each, Band):
            assert executor.crew is not None, "only a crew has bands"
            inside = {step.writes for step in members}
            beside = {slot for step in [*flat[:at], *flat[at + len(members) :]] for slot in step.reads}
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead if slot not in inside))
            compiled = Parts(members, (wanted | beside) & inside, executor.crew, dies)
        elif isinstance(each, Chain):
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead))
            compiled = executor.compile(each, dies, _one_by_one(members, dies))
        groups += [Group(step.action, [step]) for step in members] if compiled is None else [Group(compiled, members)]
        at += len(members)
    return groups


def _one_by_one(steps: list[Step], dead: tuple[int, ...]) -> Action:
    """Steps as one action. What dies is kept to the end, so that after an error they can run again."""
    calls = [(step.kernel, step.reads, step.writes) for step in steps]

    def run(slots: Slots) -> None:
        for kernel, reads, writes in calls:
            slots[writes] = kernel(*[slots[r] for r in reads])
        for x in dead:
            slots[x] = None

    return run
