"""Equations of JAX, flattened into steps of one primitive each, and computed.

What depends on no argument is computed by JAX when a program is made, if it is small: a program holds no large constants.
Loops are unrolled, calls are inlined.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jaxlib
import numpy as np
from jax.extend.core import Literal
from jax.extend.random import threefry_prng_impl

import gt
from gt.client.session import sessions
from gt.client.tensor import emission_context
from gt.ir.signal_path import path_error

from .constraints import ShardingConstraint, constrained, constraint_of, register
from .primitives import ELEMENTWISE, HAVE_PARAMETERS, RULES, TAKES_NUMBERS
from .values import dtype_of, on_workers

if TYPE_CHECKING:
    from gt import Tensor
    from gt.client.tensor.emission_context import Context

__all__ = ["JaxprProgram", "LoopStep", "Stage"]

FOLDED_ELEMENTS: Final = 1 << 16
"""The most elements of what is computed when a program is made."""
MOST_STEPS: Final = 200_000
"""The most steps of a program, without those of loops that are not unrolled."""
MOST_UNROLLED: Final = 4_000
"""The most steps of a scan that is unrolled: then it is a part of the one message that a call is."""
MOST_IN_A_STAGE: Final = 8_000
"""The most steps of one message: a step is some instructions, of which a message has 16,384 at most."""
JAX_FOLDERS: Final = tuple(str(Path(str(each.__file__)).parent) for each in (jax, jaxlib))
CALLS: Final = {
    "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "jit": "jaxpr", "pjit": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_lin": "call_jaxpr",
}  # fmt: skip
"""Primitives that call other equations, and the parameter that holds them."""


class Slot(NamedTuple):
    """A value of the run, by its number."""

    number: int


class _PrimitiveStep(NamedTuple):
    """One primitive: how it is computed, from what, in which context, the results and their dtypes, and who is needed no more."""

    rule: Callable[..., Any]
    operands: tuple[Any, ...]
    params: dict[str, Any]
    context: Context
    results: tuple[int, ...]
    dtypes: tuple[gt.DType | None, ...]


class LoopStep(NamedTuple):
    """A scan that is too long to be unrolled. Its operands are what all turns read, what each turn gets from the one before, and
    what has a row for each turn."""

    body: JaxprProgram
    operands: tuple[Slot, ...]
    counts: tuple[int, int, int]
    length: int
    reverse: bool
    results: tuple[int, ...]
    rows: tuple[Any, ...]
    """Shape and dtype of what each turn adds a row of."""


class Stage(NamedTuple):
    """A loop, or a range of steps without one: the slots that it reads, those that are read after it, and those that are not."""

    first: int
    end: int
    reads: list[int]
    writes: list[int]
    drops: list[int]
    loop: LoopStep | None


class JaxprProgram:
    """The equations of a closed jaxpr as a function of GT tensors, which gives a list of them."""

    def __init__(self, closed: Any, scope: tuple[str, ...] = (), phase: str = "forward") -> None:
        self._steps: list[_PrimitiveStep | LoopStep] = []
        self._count = 0
        self._scope = scope
        self._phase = phase
        self._site: str | None = None
        self._signals: dict[int, tuple[str, ...]] = {}
        self._constants: dict[int, int] = {}
        self._kept: list[Any] = []
        self._constraints: list[ShardingConstraint] = []
        self._session: Any = self  # none yet
        self._copies: list[Tensor] = []
        self._constant_slots: list[int] = []
        self._inputs = [self._new() for _ in closed.jaxpr.invars]
        self._outputs = [
            each if isinstance(each, Slot) else self._constant(each)
            for each in self._flatten(closed.jaxpr, closed.consts, self._inputs)
        ]
        self._dead = self._last_uses()
        self.input_signals = [self._signals.get(slot.number, ()) for slot in self._inputs]
        """The signals of the first equation that has some and reads each input."""

    def __call__(self, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        """Computes all steps, of which none is a loop."""
        values = self.begun(constants, inputs)
        self.compute(values, 0, len(self._steps))
        return self.results(values)

    def empty(self) -> list[Any]:
        """Room for the values of a run, by slot."""
        return [None] * self._count

    def begun(self, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        """The values of a run before its first step, by slot."""
        values = self.empty()
        for slot, value in zip(self._inputs, inputs, strict=True):
            values[slot.number] = value
        for number, value in zip(self._constant_slots, constants, strict=True):
            values[number] = value
        return values

    def results(self, values: list[Any]) -> list[Any]:
        """The results, after the last step."""
        return [values[each.number] for each in self._outputs]

    def compute(self, values: list[Any], first: int, end: int) -> None:
        """Computes a range of steps, of which none is a loop."""
        outer = emission_context.current()
        try:
            for step, dead in zip(self._steps[first:end], self._dead[first:end], strict=True):
                assert isinstance(step, _PrimitiveStep)
                emission_context.enter(_inside(outer, step.context))
                operands = [values[each.number] if type(each) is Slot else each for each in step.operands]
                found = step.rule(*operands, **step.params)
                found = found if isinstance(found, list) else [found]
                for number, dtype, value in zip(step.results, step.dtypes, found, strict=True):
                    values[number] = value if dtype is None or value.dtype is dtype else gt.cast(value, dtype)
                for number in dead:
                    values[number] = None
        finally:
            emission_context.enter(outer)

    def stages(self) -> list[Stage]:
        """The steps as loops, and ranges of others between them, each with the slots that it reads and that are read after it."""
        ends = [at for at, step in enumerate(self._steps) if isinstance(step, LoopStep)]
        made: list[Stage] = []
        first = 0
        for end in (*ends, len(self._steps)):
            made += [self._stage(at, min(end, at + MOST_IN_A_STAGE)) for at in range(first, end, MOST_IN_A_STAGE)]
            if end < len(self._steps):
                made.append(self._stage(end, end + 1))
            first = end + 1
        return made

    def _stage(self, first: int, end: int) -> Stage:
        steps = self._steps[first:end]
        written = {number for step in steps for number in step.results}
        read = {each.number for step in steps for each in step.operands if type(each) is Slot} - written
        gone = {number for dead in self._dead[first:end] for number in dead}
        (only,) = steps if len(steps) == 1 else (None,)
        loop = only if isinstance(only, LoopStep) else None
        return Stage(first, end, sorted(read), sorted(written - gone), sorted(gone - written), loop)

    @property
    def size(self) -> int:
        """The number of steps."""
        return len(self._steps)

    @property
    def has_loops(self) -> bool:
        """Whether some step is a loop that is too long to be unrolled."""
        return any(isinstance(step, LoopStep) for step in self._steps)

    def constants(self) -> list[Tensor]:
        """The arrays that the program has beside its inputs, on the workers of this session; it gets the rules of constraints."""
        session = sessions.current()
        if self._session is not session:
            register(session, self._constraints)
            self._session, self._copies = session, [on_workers(value) for value in self._kept]
        return self._copies

    # making it

    def _new(self) -> Slot:
        self._count += 1
        return Slot(self._count - 1)

    def _constant(self, value: Any) -> Slot:
        """The slot of a known value, of which one on the workers is enough."""
        found = self._constants.get(id(value))
        if found is None:
            found = self._constants[id(value)] = self._new().number
            self._kept.append(value)  # for sessions to come, and so that nothing else gets its id
            self._constant_slots.append(found)
        return Slot(found)

    def _context(self) -> Context:
        return emission_context.interned(_dotted(self._scope), self._phase, self._site, False)

    def _last_uses(self) -> list[tuple[int, ...]]:
        last: dict[int, int] = {}
        for at, step in enumerate(self._steps):
            for each in (*step.operands, *map(Slot, step.results)):
                if type(each) is Slot:
                    last[each.number] = at
        for slot in self._outputs:
            last.pop(slot.number, None)
        dead: list[list[int]] = [[] for _ in self._steps]
        for number, at in last.items():
            dead[at].append(number)
        return [tuple(each) for each in dead]

    def _flatten(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))

        def read(var: Any) -> Any:
            return _literal(var) if isinstance(var, Literal) else known[var]

        for equation in jaxpr.eqns:
            scope, phase = self._scope, self._phase
            names, backward = _scopes(equation.source_info.name_stack)
            self._scope = scope + names
            self._phase = "backward" if backward else phase
            self._site = _site(equation.source_info)
            try:
                found = self._equation(equation, [read(var) for var in equation.invars])
            finally:
                self._scope, self._phase = scope, phase
            known.update(zip(equation.outvars, found, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = params[CALLS[name]]
            jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
            return self._flatten(jaxpr, consts, operands)
        if not any(isinstance(each, Slot) for each in operands) and _small(equation):
            found = equation.primitive.bind(*operands, **params)
            return list(found) if equation.primitive.multiple_results else [found]
        if name in CONTROL:
            return CONTROL[name](self, operands, params)
        if name == "select_n" and not isinstance(operands[0], Slot) and not np.ndim(operands[0]):
            return [operands[1 + int(operands[0])]]
        if any(_is_key(var.aval) for var in (*equation.invars, *equation.outvars)):
            return self._of_keys(equation, operands)
        return self._step(name, operands, params, [var.aval for var in equation.outvars])

    def _step(self, name: str, operands: list[Any], params: dict[str, Any], avals: Sequence[Any]) -> list[Any]:
        if name not in RULES:
            raise NotImplementedError(f"gt.jax cannot compute JAX's primitive {name}")
        if len(self._steps) >= MOST_STEPS:
            raise NotImplementedError(f"gt.jax unrolls loops, and this program has more than {MOST_STEPS:,} steps")
        signals = _dotted(self._scope)
        for each in operands:
            if signals and isinstance(each, Slot):
                self._signals.setdefault(each.number, signals)
        bare = name in TAKES_NUMBERS and (
            any(isinstance(each, Slot) for each in operands) or name == "broadcast_in_dim"
        )
        given = tuple(each if isinstance(each, Slot) else self._operand(each, bare) for each in operands)
        results = [self._new() for _ in avals]
        dtypes = tuple(None if _is_key(aval) else dtype_of(aval.dtype) for aval in avals)
        kept = {} if name in ELEMENTWISE and name not in HAVE_PARAMETERS else dict(params)
        self._steps.append(
            _PrimitiveStep(RULES[name], given, kept, self._context(), tuple(s.number for s in results), dtypes)
        )
        return list(results)

    def _operand(self, value: Any, bare: bool) -> Any:
        """A known operand: a number where the primitive takes numbers, else an array on the workers."""
        if bare and not np.ndim(value) and not _is_key(value) and np.asarray(value).dtype.kind in "biuf":
            return np.asarray(value).item()
        return self._constant(value)

    def _of_keys(self, equation: Any, operands: list[Any]) -> list[Any]:
        """An equation about random keys, as one of the words that they are: one dimension more at the end."""
        name, params = equation.primitive.name, dict(equation.params)
        if name in ("random_wrap", "random_unwrap"):
            return operands
        words = [
            jax.random.key_data(each) if not isinstance(each, Slot) and _is_key(each) else each for each in operands
        ]
        if name in KEY_FUNCTIONS:
            function = functools.partial(KEY_FUNCTIONS[name], params)
            shapes = [_words(var.aval) for var in equation.invars]
            traced = jax.make_jaxpr(function)(*shapes)
            return self._flatten(traced.jaxpr, traced.consts, words)
        if name in KEY_SHAPES:
            params.update(KEY_SHAPES[name](params, _words(equation.invars[0].aval).shape))
            return self._step(name, words, params, [_words(var.aval) for var in equation.outvars])
        raise NotImplementedError(f"gt.jax cannot compute JAX's primitive {name} of random keys")

    def _constrained(self, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        """A value in a placement that the program asks for, by a signal of its own."""
        (value,) = operands
        found = constraint_of(params["sharding"])
        if found is None or not isinstance(value, Slot):
            return operands
        self._constraints.append(found)
        signals = (*_dotted(self._scope), found.signal)
        self._signals.setdefault(value.number, signals)
        result = self._new()
        context = emission_context.interned(signals, self._phase, self._site, False)
        self._steps.append(_PrimitiveStep(constrained, (value,), {}, context, (result.number,), (None,)))
        return [result]

    # control flow

    def _scan(self, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        """A scan, unrolled unless that would be long."""
        body, length = params["jaxpr"], params["length"]
        if length > 1:
            inner = JaxprProgram(body, self._scope, self._phase)
            if inner.has_loops or inner.size * length > MOST_UNROLLED:
                return self._loop(inner, operands, params)
        consts, carries = params["num_consts"], params["num_carry"]
        fixed, carry, along = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
        along_avals = [var.aval for var in body.jaxpr.invars[consts + carries :]]
        made: list[list[Any]] = []
        for turn in range(length - 1, -1, -1) if params["reverse"] else range(length):
            rows = [self._row(each, aval, turn) for each, aval in zip(along, along_avals, strict=True)]
            found = self._flatten(body.jaxpr, body.consts, [*fixed, *carry, *rows])
            carry = found[:carries]
            made.append(found[carries:])
        if params["reverse"]:
            made.reverse()
        avals = [var.aval for var in body.jaxpr.outvars[carries:]]
        return [*carry, *(self._stacked([each[at] for each in made], aval) for at, aval in enumerate(avals))]

    def _loop(self, body: JaxprProgram, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        """A scan as a loop: its body is a program that runs again and again."""
        consts, carries = params["num_consts"], params["num_carry"]
        slots = tuple(each if isinstance(each, Slot) else self._constant(each) for each in operands)
        for slot, signals in zip(slots, body.input_signals, strict=True):
            if signals:
                self._signals.setdefault(slot.number, signals)
        self._constraints += body._constraints
        avals = [var.aval for var in params["jaxpr"].jaxpr.outvars]
        results = tuple(self._new() for _ in avals)
        rows = tuple(_words(aval) for aval in avals[carries:])
        counts = consts, carries, len(slots) - consts - carries
        numbers = tuple(each.number for each in results)
        self._steps.append(LoopStep(body, slots, counts, params["length"], params["reverse"], numbers, rows))
        return list(results)

    def _row(self, values: Any, aval: Any, at: int) -> Any:
        if not isinstance(values, Slot):
            return values[at]
        result = self._new()
        dtype = None if _is_key(aval) else dtype_of(aval.dtype)
        self._steps.append(_PrimitiveStep(gt.select, (values, 0, at), {}, self._context(), (result.number,), (dtype,)))
        return result

    def _stacked(self, values: list[Any], aval: Any) -> Any:
        if not values:
            return np.zeros((0, *aval.shape), aval.dtype)
        parts = tuple(each if isinstance(each, Slot) else self._constant(each) for each in values)
        result = self._new()
        dtype = None if _is_key(aval) else dtype_of(aval.dtype)
        self._steps.append(
            _PrimitiveStep(lambda *rows: gt.stack(rows, 0), parts, {}, self._context(), (result.number,), (dtype,))
        )
        return result

    def _while(self, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        """A loop whose condition depends on no argument, unrolled."""
        tested, done = params["cond_nconsts"], params["body_nconsts"]
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        test_consts, body_consts = operands[:tested], operands[tested : tested + done]
        carry = operands[tested + done :]
        while True:
            count = len(self._steps)
            (going,) = self._flatten(test.jaxpr, test.consts, [*test_consts, *carry])
            if isinstance(going, Slot):
                raise NotImplementedError(
                    "gt.jax cannot compute JAX's primitive while where its condition depends on values"
                )
            if len(self._steps) > count:
                del self._steps[count:]
            if not bool(going):
                return carry
            carry = self._flatten(body.jaxpr, body.consts, [*body_consts, *carry])

    def _cond(self, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        """The branch, where it is known; else all branches, of which one is selected."""
        which, *rest = operands
        branches = params["branches"]
        if not isinstance(which, Slot):
            chosen = branches[min(max(int(which), 0), len(branches) - 1)]
            return self._flatten(chosen.jaxpr, chosen.consts, rest)
        found = [self._flatten(branch.jaxpr, branch.consts, rest) for branch in branches]
        avals = [var.aval for var in branches[0].jaxpr.outvars]
        out = []
        for aval, cases in zip(avals, zip(*found, strict=True), strict=True):
            slots = [each if isinstance(each, Slot) else self._constant(each) for each in cases]
            out += self._step("select_n", [which, *slots], {}, [aval])
        return out


CONTROL: Final[dict[str, Callable[[JaxprProgram, list[Any], dict[str, Any]], list[Any]]]] = {
    "sharding_constraint": JaxprProgram._constrained,
    "cond": JaxprProgram._cond,
    "scan": JaxprProgram._scan,
    "while": JaxprProgram._while,
}
"""Primitives of control flow."""


def _over_keys(function: Callable[..., Any], words: Any, *more: Any) -> Any:
    """A function of one key's words, of each of many."""
    for _ in range(words.ndim - 1):
        function = jax.vmap(function)
    return function(words, *more)


KEY_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "random_bits": lambda params, words: _over_keys(
        lambda one: threefry_prng_impl.random_bits(one, params["bit_width"], params["shape"]), words
    ),
    "random_fold_in": lambda params, words, data: _over_keys(threefry_prng_impl.fold_in, words, data),
    "random_split": lambda params, words: _over_keys(lambda one: threefry_prng_impl.split(one, params["shape"]), words),
}
"""What JAX computes of random keys, of their words."""

KEY_SHAPES: Final[dict[str, Callable[[dict[str, Any], tuple[int, ...]], dict[str, Any]]]] = {
    "broadcast_in_dim": lambda params, shape: {
        "shape": (*params["shape"], shape[-1]),
        "broadcast_dimensions": (*params["broadcast_dimensions"], len(params["shape"])),
    },
    "reshape": lambda params, shape: {"new_sizes": (*params["new_sizes"], shape[-1])},
    "slice": lambda params, shape: {
        "start_indices": (*params["start_indices"], 0),
        "limit_indices": (*params["limit_indices"], shape[-1]),
        "strides": params["strides"] and (*params["strides"], 1),
    },
    "squeeze": lambda params, shape: {},
}
"""Parameters of what only moves keys, for their words."""


def _is_key(value: Any) -> bool:
    return bool(jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key))


def _words(aval: Any) -> Any:
    """The words of a value's keys; what holds none is as it is."""
    return jax.ShapeDtypeStruct((*aval.shape, 2), np.uint32) if _is_key(aval) else aval


def _small(equation: Any) -> bool:
    return all(math.prod(var.aval.shape) <= FOLDED_ELEMENTS for var in equation.outvars)


def _literal(literal: Any) -> Any:
    return literal.val if _is_key(literal.aval) else np.asarray(literal.val, literal.aval.dtype)


# what an equation says of where it comes from


def _scopes(stack: Any) -> tuple[tuple[str, ...], bool]:
    """The names of the scopes around an equation, outermost first, and whether it is of a backward pass."""
    names = tuple(each.name for each in stack.stack if type(each).__name__ == "Scope")
    return names, any(type(each).__name__ == "Transform" and each.name == "transpose" for each in stack.stack)


def _dotted(scope: tuple[str, ...]) -> tuple[str, ...]:
    """The signals of scopes: `layer/attn` is `layer` and inside of it `layer.attn`."""
    parts = [part for each in scope for part in re.split(r"[/.]", each)]
    signals = tuple(".".join(parts[: end + 1]) for end in range(len(parts)))
    return () if path_error(signals) else signals


def _site(source: Any) -> str | None:
    """The program's line: the innermost one outside of JAX."""
    for frame in source.traceback.frames if source.traceback is not None else ():
        if not frame.file_name.startswith(JAX_FOLDERS) and not frame.file_name.startswith("<"):
            return f"{frame.file_name}:{frame.line_num}"
    return None


def _inside(outer: Context, inner: Context) -> Context:
    """The context of an equation within the one in which the program is called."""
    if not outer.signal:
        return inner
    return emission_context.interned(outer.signal + inner.signal, inner.phase, inner.site, False, hints=outer.hints)
