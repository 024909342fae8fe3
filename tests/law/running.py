"""Running a drawn program: on one worker beside NumPy, step by step, and on many under a config; then comparing.

The run on one worker is the reference. Every result of it is fetched at once and compared with NumPy's, computed from
the very operands that the reference had, so errors do not add up and each op is judged alone. On the way each tensor
gets a `Cell`: whether all its bits are determined, and how large the numbers were from which it came.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import host_facts
from gt.errors import ConfigError
from gt.service import in_process
from gt.service.in_process import Fabric, InprocLink

from .meaning import IN_PLACE, MEANINGS, RANDOM, Array, Meaning, kind_of
from .networks import Network, train
from .places import FILE, Place, Plain, read
from .programs import DTYPES, Program, Step, at

TOLERANCE: Final = (0.0, 1e-9, 1e-4, 3e-2, 2.5e-1)
"""Relative to the largest number on the way, by level: exact bits, float64, float32, float16, bfloat16."""
CLOSE: Final = (0.0, 1e-7, 1e-3, 5e-2, 4e-1)
"""Nearer than this to a jump, a rounding error may decide on which side a number falls: such programs say nothing."""
ROUNDING: Final = (0.0, 1e-12, 2e-5, 2e-2, 1.5e-1)
"""How far GT on one worker may be from NumPy in a single step."""
ONLY_NEAR: Final = frozenset({("randn", "cuda:0")})
"""Ops whose bits are the same in all places, but on this device not NumPy's: the quantile of a normal is a library's own."""

Key = tuple[int, int, str]
"""Where a program looked: repetition (−1: the set-up), step, and what it looked at."""


class Discarded(Exception):
    """The program depends on rounding errors, or leaves the numbers: it proves nothing."""


class Refused(Exception):
    """The config cannot be, for these workers or this program, and a clear `ConfigError` said so."""


@dataclass
class Cell:
    """What is known of the numbers in some memory: `level` as in TOLERANCE, `scale` at least the largest of them.

    `summed`: they may be sums whose parts lie on several workers; a factor may be multiplied into each part.
    """

    level: int = 0
    scale: float = 1.0
    summed: bool = False


@dataclass
class Looked:
    """A value as the reference had it."""

    value: Array
    level: int
    scale: float


def _level(dtype: np.dtype[Any]) -> int:
    """The level of a rounded number."""
    return {"float64": 1, "complex128": 1, "float32": 2, "complex64": 2, "float16": 3, "bfloat16": 4}.get(dtype.name, 0)


def _largest(array: Array) -> float:
    return float(np.abs(wide(array)).max(initial=0.0)) if kind_of(array) in "fc" else 1.0


def wide(array: Array) -> Array:
    """Floating-point and complex numbers in the dtype that holds all of their kind."""
    return array.astype({"f": np.float64, "c": np.complex128}.get(kind_of(array), array.dtype))


# both runs


class Machine:
    """A program's tensors in GT, and how each kind of step runs."""

    def __init__(self) -> None:
        self.tensors: dict[int, Any] = {}
        self.parameters: dict[int, Any] = {}
        self.optimizer: Any = None
        self.where = (-1, 0)

    def step(self, step: Step, repetition: int) -> tuple[Any, ...]:
        """Run one step; its results."""
        with ExitStack() as stack:
            if step.signal:
                stack.enter_context(gt.signal.context(step.signal, backward=step.backward))
            if step.no_grad:
                stack.enter_context(gt.no_grad())
            outs = self._results(step, repetition)
        self.tensors.update(zip(step.outs, outs, strict=True))
        return outs

    def _results(self, step: Step, repetition: int) -> tuple[Any, ...]:
        special: Callable[..., Any] | None = getattr(self, "_" + step.op, None)
        if special is not None:
            return special(step, repetition) or ()
        operands = [self.tensors[i] for i in step.ins]
        arguments = {key: at(value, repetition) for key, value in step.arguments.items()}
        out = MEANINGS[step.op].gt(*operands, **arguments)
        if not step.outs:
            return ()
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def _Linear(self, step: Step, _: int) -> tuple[Any, ...]:  # noqa: N802  # the step's name
        arguments = step.arguments
        layer = gt.nn.Linear(arguments["inner"], arguments["out"], dtype=DTYPES[arguments["dtype"]])
        self.parameters.update(zip(step.outs, layer.parameters(), strict=True))
        return tuple(layer.parameters())

    def _Parameter(self, step: Step, _: int) -> tuple[Any, ...]:  # noqa: N802
        (number,) = step.outs
        self.parameters[number] = gt.nn.Parameter(self.tensors[step.ins[0]])
        return (self.parameters[number],)

    def _optimizer(self, step: Step, _: int) -> None:
        learnt = [self.parameters[i] for i in step.ins]
        name = step.arguments["name"]
        if name == "SGD":
            self.optimizer = gt.optim.SGD(learnt, lr=0.1)
        elif name == "momentum":
            self.optimizer = gt.optim.SGD(learnt, lr=0.1, momentum=0.5, weight_decay=0.25, nesterov=True)
        else:
            self.optimizer = getattr(gt.optim, name)(learnt, lr=0.1, eps=1e-2)

    def _backward(self, step: Step, repetition: int) -> None:
        x, *weights = [self.tensors[i] for i in step.ins]
        arguments = step.arguments
        if not x.requires_grad:
            return
        if arguments["kind"] == "weights":
            x.backward(*weights)
        else:
            loss = x.sum() if arguments["kind"] == "sum" else x.square().sum()
            loss.backward()
        self.after_backward(step, repetition)
        for group in self.optimizer.param_groups:
            group["lr"] = arguments["lr"] * 0.5**repetition
        if arguments["step"]:
            self.optimizer.step()
        if arguments["zero"]:
            self.optimizer.zero_grad()

    def after_backward(self, step: Step, repetition: int) -> None:
        """The gradients are there and nothing has been done with them."""

    def _delete(self, step: Step, _: int) -> None:
        del self.tensors[step.ins[0]]

    def _flush(self, *_: Any) -> None:
        gt.flush()

    def gradients(self) -> dict[str, Any]:
        """Those that there are, by name."""
        return {f"t{i}.grad": p.grad for i, p in self.parameters.items() if p.grad is not None}

    def everything(self) -> dict[str, Any]:
        """All tensors, and the gradients, by name."""
        return {**{f"t{i}": tensor for i, tensor in self.tensors.items()}, **self.gradients()}

    def run(self, program: Program) -> None:
        """The whole program."""
        gt.manual_seed(program.seed)
        for number, step in enumerate(program.setup):
            self.at(-1, number, step)
        for repetition in range(program.repeats):
            for number, step in enumerate(program.body):
                self.at(repetition, number, step)
        self.look((program.repeats, 0), self.everything(), later=False)

    def at(self, repetition: int, number: int, step: Step) -> None:
        """Run the step at a place of the program."""
        if step.op == "fetch":
            wanted = {f"t{i}": self.tensors[i] for i in step.ins}
            self.look((repetition, number), wanted, later=step.arguments["later"])
        else:
            self.where = (repetition, number)
            self.step(step, max(repetition, 0))

    def look(self, place: tuple[int, int], wanted: dict[str, Any], *, later: bool) -> None:
        """Remember the values of some tensors."""
        raise NotImplementedError


class Subject(Machine):
    """The run under test: nothing is fetched but what the program fetches."""

    def __init__(self, reload: Plain | None) -> None:
        super().__init__()
        self.values: dict[Key, Any] = {}
        self.reload = reload

    def at(self, repetition: int, number: int, step: Step) -> None:
        if (repetition, number) == (1, 0) and self.reload is not None:
            _load(self.reload)
        super().at(repetition, number, step)

    def look(self, place: tuple[int, int], wanted: dict[str, Any], *, later: bool) -> None:
        for name, tensor in wanted.items():
            future = tensor.fetch()
            self.values[(*place, name)] = future if later else future.result()

    def after_backward(self, step: Step, repetition: int) -> None:
        if step.arguments["look"]:
            self.look(self.where, self.gradients(), later=True)

    def results(self) -> dict[Key, Array]:
        """All that was looked at."""
        return {key: value if isinstance(value, np.ndarray) else value.result() for key, value in self.values.items()}


class Reference(Machine):
    """The run on one worker beside NumPy."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.arrays: dict[int, Array] = {}
        self.cells: dict[int, Cell] = {}
        self.values: dict[Key, Looked] = {}
        self.seed = seed
        self.draws = itertools.count()
        self.noise = 0
        self.steepest = 1.0

    def look(self, place: tuple[int, int], wanted: dict[str, Any], *, later: bool) -> None:
        for name, tensor in wanted.items():
            value = tensor.numpy()
            if name.endswith(".grad"):
                known = self._gradient(value)
            else:
                known = self.cells[int(name[1:])]
                np.testing.assert_array_equal(value, self.arrays[int(name[1:])], err_msg=f"{name} is not what it was")
            self.values[(*place, name)] = Looked(value, known.level, known.scale)

    def _gradient(self, value: Array) -> Cell:
        if not np.isfinite(value).all():
            raise Discarded("a gradient is not finite")
        return Cell(max(self.noise, _level(value.dtype)), self.steepest * max(1.0, _largest(value)))

    def after_backward(self, step: Step, repetition: int) -> None:
        cell = self.cells[step.ins[0]]
        self.steepest = max(self.steepest, *(c.scale for c in self.cells.values()))
        self.noise = max(self.noise, cell.level, *(c.level for c in self.cells.values()))
        if step.arguments["look"]:
            self.look(self.where, self.gradients(), later=False)

    def step(self, step: Step, repetition: int) -> tuple[Any, ...]:
        if step.op == "delete":
            del self.arrays[step.ins[0]], self.cells[step.ins[0]]
        if step.op in MEANINGS:
            with np.errstate(all="ignore"):
                return self._compared(step, repetition)
        outs = super().step(step, repetition)
        if step.op == "Linear":
            self._layer(step)
        elif step.op == "Parameter":
            self.arrays[step.outs[0]] = self.arrays[step.ins[0]].copy()
            self.cells[step.outs[0]] = Cell(**vars(self.cells[step.ins[0]]))
        elif step.op == "backward" and step.arguments["step"]:
            self._learnt()
        return outs

    def _layer(self, step: Step) -> None:
        """A layer's first values: uniform within 1/√in."""
        inner, dtype = step.arguments["inner"], step.arguments["dtype"]
        bound = 1 / np.sqrt(inner) if inner else 0.0
        for number in step.outs:
            shape = self.tensors[number].shape
            draw = MEANINGS["rand"].numpy(shape=shape, dtype=dtype, counter=next(self.draws), seed=self.seed)
            self.arrays[number] = draw * draw.dtype.type(2 * bound) + draw.dtype.type(-bound)
            self.cells[number] = Cell()
            np.testing.assert_array_equal(self.tensors[number].numpy(), self.arrays[number])

    def _learnt(self) -> None:
        """After an optimizer's step its parameters are whatever they are: GT's gradients are judged elsewhere."""
        for number, parameter in self.parameters.items():
            value = parameter.numpy()
            if not np.isfinite(value).all():
                raise Discarded("a parameter is not finite")
            if not np.array_equal(value, self.arrays[number]):
                self.arrays[number][...] = value
                self._spoil(self.arrays[number], Cell(max(self.noise, _level(value.dtype)), self.steepest))

    def _spoil(self, array: Array, cell: Cell) -> None:
        """Everything that shares memory with `array` is now no better known than `cell`."""
        for number, other in self.arrays.items():
            if np.may_share_memory(other, array):
                known = self.cells[number]
                known.level, known.scale = max(known.level, cell.level), max(known.scale, cell.scale, _largest(array))
                known.summed |= cell.summed

    def _compared(self, step: Step, repetition: int) -> tuple[Any, ...]:
        meaning = MEANINGS[step.op]
        arguments = {key: at(value, repetition) for key, value in step.arguments.items()}
        operands = [self.arrays[i] for i in step.ins]
        cells = [self.cells[i] for i in step.ins]
        cell = self._known(meaning, arguments, operands, cells, [self.tensors[i] for i in step.ins])
        if step.op in RANDOM:
            arguments |= {"counter": next(self.draws), "seed": self.seed}
        expected = meaning.numpy(*operands, **arguments)
        outs = super().step(step, repetition)
        if step.op in IN_PLACE:
            self._written(step, cell, ROUNDING[_level(operands[0].dtype)] if meaning.exact == "no" else 0.0)
            return outs
        arrays = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        for number, out, array in zip(step.outs, outs, arrays, strict=True):
            self._store(step, number, out, np.asarray(array), Cell(**vars(cell)), operands)
        return outs

    def _store(self, step: Step, number: int, out: Any, array: Array, cell: Cell, operands: list[Array]) -> None:
        got = out.numpy()
        where = f"{step} (one worker beside NumPy)"
        assert (got.dtype, got.shape) == (array.dtype, array.shape), where
        if kind_of(array) not in "fc":
            cell.level = 0
        elif cell.level == 0:
            cell.level = self._rounded(step, cell, operands, array)
        cell.summed |= MEANINGS[step.op].exact not in ("yes", "factor")
        if not np.isfinite(wide(got)).all():
            raise Discarded(f"{step.op} is not finite")
        error = ROUNDING[_level(array.dtype)] * max(cell.scale, _largest(array))
        if MEANINGS[step.op].exact in ("yes", "factor") and (step.op, in_process.DEFAULT_DEVICE) not in ONLY_NEAR:
            error = 0.0
        np.testing.assert_allclose(wide(got), wide(array), rtol=error, atol=error, err_msg=where)
        cell.scale = max(cell.scale, _largest(array))
        if not any(np.shares_memory(array, other) for other in operands):
            array = got
        self.arrays[number], self.cells[number] = array, cell

    def _written(self, step: Step, cell: Cell, error: float) -> None:
        """After a write: all that shares the memory is as NumPy has it."""
        target = self.arrays[step.ins[0]]
        if kind_of(target) not in "fc":
            cell.level = 0
        elif MEANINGS[step.op].exact == "no" or (MEANINGS[step.op].exact == "factor" and cell.summed):
            cell.level = max(cell.level, _level(target.dtype))
        if not np.isfinite(wide(target)).all():
            raise Discarded(f"{step.op} is not finite")
        for number in [n for n, other in self.arrays.items() if np.may_share_memory(other, target) or n == step.ins[0]]:
            got = self.tensors[number].numpy()
            name = f"t{number} after {step} (one worker beside NumPy)"
            np.testing.assert_allclose(wide(got), wide(self.arrays[number]), rtol=error, atol=error, err_msg=name)
            if error and self.arrays[number].flags.writeable:
                self.arrays[number][...] = got
        self._spoil(target, cell)

    def _known(
        self, meaning: Meaning, arguments: dict[str, Any], operands: list[Array], cells: list[Cell], tensors: list[Any]
    ) -> Cell:
        """The cell of what is computed from these; discards a program of which a rounding error decides."""
        level = max((cell.level for cell in cells), default=0)
        scale = max((cell.scale for cell in cells), default=1.0)
        tests = [meaning.jump] if level else []
        if level and any(tensor.requires_grad for tensor in tensors):
            tests.append(meaning.kink)
        for distance in tests:
            if distance is not None and operands[0].size:
                found = np.abs(np.asarray(distance(*operands, **arguments), np.float64))
                if found.size and found.min() <= CLOSE[level] * scale:
                    raise Discarded("a rounding error would decide")
        if meaning.grows == "product":
            scale = float(np.prod([cell.scale for cell in cells])) * max((cell.scale for cell in cells), default=1.0)
        elif meaning.grows == "sum":
            scale *= max(1, operands[0].size)
        return Cell(level, min(scale, 1e30), any(cell.summed for cell in cells))

    def _rounded(self, step: Step, cell: Cell, operands: list[Array], out: Array) -> int:
        """0 where every number that any order of adding could meet is representable; else the level of a rounded one."""
        kind = MEANINGS[step.op].exact
        if kind == "yes" or (kind == "factor" and not cell.summed):
            return 0
        rounded = _level(out.dtype)
        unit, most = {1: (2.0**10, 2.0**50), 2: (2.0**4, 2.0**22), 3: (2.0**2, 2.0**9), 4: (2.0**2, 2.0**6)}[rounded]
        if kind in ("no", "factor") or any(kind_of(operand) == "c" for operand in operands):
            return rounded
        scaled = [operand.astype(np.float64) * unit for operand in operands]
        if any((x != np.rint(x)).any() for x in scaled):
            return rounded
        if kind == "matmul":
            total = np.matmul(np.abs(scaled[0]), np.abs(scaled[1])).max(initial=0.0)
        else:
            total = np.abs(scaled[0]).sum()
        count = operands[0].size // max(1, out.size)
        halves = kind == "sum" or count & (count - 1) == 0
        return 0 if total < most and halves else rounded


# comparing


def _fabric() -> Any:
    return sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session


def nothing_is_left() -> None:
    """When all tensors are gone and what was gathered is sent, nobody holds any."""
    gt.flush()
    gt.synchronize()
    fabric = _fabric()
    fabric.check()
    dispatcher = fabric.dispatcher
    for client in dispatcher.service.clients.values():
        assert not client.table, f"the dispatcher still knows {client.table}"
        assert not client.queue, f"the dispatcher still has to act on {client.queue}"
        assert not client.inflight, "credits are outstanding"
    assert not dispatcher.fetches.collections, "a fetch was never answered"
    assert not dispatcher.service.issued, "a plan was never finished"
    for worker in fabric.workers.values():
        held = {key for store in worker.stored.tensors.values() for key in store}
        assert not held, f"worker {worker.number} still holds {held}"
        assert not worker.moves.arrived, f"worker {worker.number} still has pieces of {worker.moves.arrived.keys()}"
        assert not worker.stored.expecting, f"worker {worker.number} still expects {worker.stored.expecting}"


def connected(place: Place) -> None:
    """A session on the workers of a place, under its config."""
    config = read(place.config)
    if config is not None:
        config.mesh_for(place.workers)  # what `gt.connect` does before it starts anything
    facts = [{"host": f"host{n}", "speed": [1e9 * speed, 1e9 * speed]} for n, speed in enumerate(place.speeds)]
    fabric = Fabric(place.workers, config, codec=place.codec, facts=facts)
    session = Session(InprocLink(fabric), "inproc", idle_flush=False)
    session.open({**host_facts(), "bulk": b""}, 1.0)
    sessions.adopt(session)


def reference(program: Program) -> dict[Key, Looked]:
    """What a program should see everywhere. Raises `Discarded` when that is not determined."""
    gt.connect("inproc", workers=1)
    machine = Reference(program.seed)
    machine.run(program)
    values = machine.values
    del machine
    nothing_is_left()
    return values


def inside(place: Place, work: Callable[[], Any]) -> Any:
    """What `work` makes in a place; it leaves nothing there. Raises `Refused` when a clear error says that it cannot be."""
    gt.disconnect()
    try:
        connected(place)
        made = work()
        _fabric().check()
    except ConfigError as error:
        check_refusal(str(error))
        raise Refused(str(error)) from None
    nothing_is_left()
    return made


def sharded(program: Program, place: Place) -> dict[Key, Array]:
    """What a program sees in a place."""

    def work() -> dict[Key, Array]:
        machine = Subject(place.reload)
        machine.run(program)
        return machine.results()

    return inside(place, work)


def check_refusal(text: str) -> None:
    """A refusal says where in the file, by which key, and what would do."""
    lines = text.splitlines()
    assert len(set(lines)) == len(lines), f"an error says something twice: {text}"
    for line in lines:
        if not line.startswith("and "):
            assert re.match(rf"{FILE}:\d+: \S+.*; allowed: .+", line), f"not a clear refusal: {line}"


def differences(expected: dict[Key, Looked], found: dict[Key, Array]) -> Iterator[str]:
    """Where two runs differ by more than the order in which numbers are added can explain."""
    if expected.keys() != found.keys():
        yield f"the runs looked at different things: {expected.keys() ^ found.keys()}"
    for key, looked in expected.items():
        value = found.get(key)
        if value is None:
            continue
        repetition, number, name = key
        place = f"{name} at step {number} of repetition {repetition}"
        if (value.dtype, value.shape) != (looked.value.dtype, looked.value.shape):
            yield f"{place}: {value.dtype} {value.shape} for {looked.value.dtype} {looked.value.shape}"
            continue
        if looked.level == 0:
            if not np.array_equal(value, looked.value):
                yield f"{place}: not the same bits:\n{value}\nfor\n{looked.value}"
            continue
        off = _largest(wide(value) - wide(looked.value))
        allowed = TOLERANCE[looked.level] * max(looked.scale, _largest(looked.value))
        if not off <= allowed:
            yield f"{place}: off by {off:.3g} where {allowed:.3g} is allowed:\n{value}\nfor\n{looked.value}"


def other_bits(expected: dict[Key, Array] | dict[str, Array], found: Mapping[Any, Array]) -> Iterator[str]:
    """Where a run differs in any bit from the one on one worker under the same config; one NaN is as good as another."""
    for key, value in expected.items():
        bits, others = (
            np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8) for x in (value, found[key])
        )  # zeros have signs
        if not ((bits == others).all(1) | (value != value).reshape(-1)).all():
            yield f"{key}: not the bits of one worker:\n{found[key]!r}\nfor\n{value!r}"


def _alone(place: Place) -> Place:
    """One worker that computes in the same blocks."""
    return Place(1, {"deterministic": True, "blocks": place.deterministic})


def assert_law(program: Program, places: Iterable[Place]) -> Iterator[str | None]:
    """Annotations never change values: a program sees everywhere what it sees on one worker, and leaves nothing.

    For each place: None when that holds there, or the error by which the config was refused.
    """
    expected = reference(program)
    for place in places:
        try:
            found = sharded(program, place)
        except Refused as refusal:
            yield str(refusal)
            continue
        wrong = list(differences(expected, found))
        if place.deterministic and place.reload is None:
            wrong += other_bits(sharded(program, _alone(place)), found)
        assert not wrong, "\n".join([str(place), *wrong])
        yield None


def assert_same_training(network: Network, places: Iterable[Place]) -> Iterator[str | None]:
    """The law for a network: its losses, gradients and parameters are what they are on one worker."""
    expected = inside(Place(1, None), lambda: train(network))
    if not all(np.isfinite(value).all() for value in expected.values()):
        raise Discarded("the training is not finite")
    for place in places:
        again = None if place.reload is None else partial(_load, place.reload)
        try:
            found = inside(place, lambda again=again: train(network, again))
        except Refused as refusal:
            yield str(refusal)
            continue
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            scale = 1e-8 * max(1.0, _largest(value))
            np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=scale, err_msg=f"{name}\n{place}")
        if place.deterministic and place.reload is None:
            wrong = list(other_bits(inside(_alone(place), lambda: train(network)), found))
            assert not wrong, "\n".join([str(place), *wrong])
        yield None


def _load(config: Plain) -> None:
    gt.load_config(read(config))
