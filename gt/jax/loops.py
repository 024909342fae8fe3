"""Programs with long loops: what lies between loops is one message each, and of a loop some turns are.

A loop costs no more however long it is but time: its body is traced and planned once. Rows that turns read are cut from their
array by a number on the workers, and rows that turns add are joined once for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import gt
from gt.client.compile.stateless import alone

from .equations import JaxprProgram, LoopStep, Stage

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["runner"]

STEPS_IN_A_MESSAGE: Final = 1_000
"""As many turns are one message as have about so many steps."""

Run = Callable[[Sequence["Tensor"], Sequence["Tensor"]], list[Any]]


def runner(program: JaxprProgram, name: str) -> Run:
    """How a call runs a program, given its constants and inputs."""
    return (
        _Staged(program, name) if len(program.stages()) > 1 or program.has_loops else gt.compile(alone(program, name))
    )


class _Staged:
    """A program with loops."""

    def __init__(self, program: JaxprProgram, name: str) -> None:
        self._program = program
        self._kept: list[Any] = []
        self._stages = [(stage, self._made(stage, name)) for stage in program.stages()]

    def __call__(self, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        values = self._program.begun(constants, inputs)
        for stage, run in self._stages:
            found = run([values[number] for number in stage.reads])
            for number, value in zip(stage.writes, found, strict=True):
                values[number] = value
            for number in stage.drops:
                values[number] = None
        return self._program.results(values)

    def _made(self, stage: Stage, name: str) -> Callable[[list[Any]], list[Any]]:
        if stage.loop is not None:
            loop = _Loop(stage.loop, name)
            places = {number: at for at, number in enumerate(stage.loop.results)}
            order = [places[number] for number in stage.writes]
            given = {number: at for at, number in enumerate(stage.reads)}
            operands = [given[each.number] for each in stage.loop.operands]

            def looped(values: list[Any]) -> list[Any]:
                found = loop([values[at] for at in operands])
                return [found[at] for at in order]

            return looped

        def straight(given: list[Any]) -> list[Any]:
            values = self._program.empty()
            for number, value in zip(stage.reads, given, strict=True):
                values[number] = value
            self._program.compute(values, stage.first, stage.end)
            return [values[number] for number in stage.writes]

        self._kept.append(straight)
        return gt.compile(alone(straight, name))  # type: ignore[no-any-return]


class _Loop:
    """A scan: its turns, some in each message."""

    def __init__(self, step: LoopStep, name: str) -> None:
        self._step = step
        self._kept: list[Any] = []
        self._staged = _Staged(step.body, name) if step.body.has_loops else None
        self._count = 1 if self._staged else min(step.length, max(1, STEPS_IN_A_MESSAGE // max(1, step.body.size)))
        self._turns = {count: self._several(count, name) for count in {self._count, step.length % self._count} if count}

    def __call__(self, operands: list[Any]) -> list[Any]:
        step = self._step
        consts, carries, _ = step.counts
        fixed, carry, along = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
        constants = step.body.constants()
        index = gt.full((), step.length - 1 if step.reverse else 0, dtype=gt.int64)
        made: list[list[Any]] = []
        left = step.length
        while left:
            count = min(left, self._count)
            found = self._turns[count](constants, index, fixed, carry, along)
            index, carry = found[0], found[1 : 1 + carries]
            made.append(found[1 + carries :])
            left -= count
        return [*carry, *(self._joined([each[at] for each in made]) for at in range(len(step.rows)))]

    def _several(self, count: int, name: str) -> Callable[..., list[Any]]:
        """So many turns as one program: the number of the next, what it gets, and the rows that they added."""
        step, body = self._step, self._staged or self._step.body
        sign = -1 if step.reverse else 1

        def turns(
            constants: list[Any], index: Tensor, fixed: list[Any], carry: list[Any], along: list[Any]
        ) -> list[Any]:
            numbers = gt.add(index, gt.arange(0, sign * count, sign, dtype=gt.int64))
            blocks = [gt.index_select(each, 0, numbers) for each in along]
            added: list[list[Any]] = []
            for turn in range(count):
                rows = [gt.select(each, 0, turn) for each in blocks]
                found = body(constants, [*fixed, *carry, *rows])
                carry = found[: len(carry)]
                added.append(found[len(carry) :])
            stacked = [gt.stack([each[at] for each in added], 0) for at in range(len(step.rows))]
            return [gt.add(index, sign * count), *carry, *stacked]

        if self._staged:
            return turns
        self._kept.append(turns)
        return gt.compile(alone(turns, name))  # type: ignore[no-any-return]

    def _joined(self, parts: list[Any]) -> Any:
        while len(parts) > 1:  # an instruction takes no more operands
            parts = [gt.cat(parts[at : at + 256], 0) for at in range(0, len(parts), 256)]
        return gt.flip(parts[0], (0,)) if self._step.reverse else parts[0]
