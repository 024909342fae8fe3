"""`gt.jax.jit`: a function of JAX as programs of GT, one for each structure, shapes and dtypes of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

import gt
from gt.client.tensor import emission, emission_context

from .constraints import is_constrained
from .equations import JaxprProgram
from .loops import runner
from .values import Array, on_workers

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["Jitted", "jit"]


class _Made(NamedTuple):
    """A program, how a call runs it, the structure of its results, and the signals by which each argument that it also returns is
    placed."""

    program: JaxprProgram
    run: Callable[..., list[Any]]
    results: Any
    placed: list[tuple[str, ...]]


class Jitted:
    """A function of JAX that computes on the workers."""

    def __init__(self, function: Callable[..., Any], static_argnums: tuple[int, ...]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._static = static_argnums
        self._made: dict[Any, _Made] = {}

    @property
    def programs(self) -> int:
        """How many programs there are: one for each structure, shapes and dtypes of arguments."""
        return len(self._made)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        static = tuple(at % len(args) for at in self._static)
        traced = [each for at, each in enumerate(args) if at not in static]
        leaves, structure = jax.tree.flatten((traced, kwargs))
        shapes = tuple(_shape(each) for each in leaves)
        key = (structure, shapes, tuple((at, args[at]) for at in static))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(args, static, structure, shapes)
        with gt.no_grad():
            values = [_given(each, signals) for each, signals in zip(leaves, made.placed, strict=True)]
            found = made.run(made.program.constants(), values)
        return jax.tree.unflatten(made.results, [Array(each) for each in found])

    def _make(self, args: tuple[Any, ...], static: Sequence[int], structure: Any, shapes: Sequence[Any]) -> _Made:
        results: Any = None

        def flat(*leaves: Any) -> list[Any]:
            nonlocal results
            traced, kwargs = jax.tree.unflatten(structure, leaves)
            rest = iter(traced)
            whole = [args[at] if at in static else next(rest) for at in range(len(args))]
            found, results = jax.tree.flatten(self._function(*whole, **kwargs))
            return list(found)

        structs = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in shapes]
        closed = jax.make_jaxpr(flat)(*structs)
        for aval in closed.out_avals:
            if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
                raise NotImplementedError("gt.jax.jit returns no random keys: return jax.random.key_data(key)")
        program = JaxprProgram(closed)
        returned = {(aval.shape, aval.dtype) for aval in closed.out_avals}
        placed = [
            signals if (struct.shape, struct.dtype) in returned else ()
            for struct, signals in zip(structs, program.input_signals, strict=True)
        ]
        name = getattr(self._function, "__qualname__", "a function of JAX")
        return _Made(program, runner(program, name), results, placed)


def _shape(leaf: Any) -> tuple[Any, ...]:
    """Shape, dtype and whether the dtype is weak, as a number's is."""
    if isinstance(leaf, Array):
        return leaf.shape, leaf.dtype, False
    aval = jax.typeof(leaf) if hasattr(jax, "typeof") else jax.core.get_aval(leaf)
    return aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False))


def _given(leaf: Any, signals: tuple[str, ...]) -> Tensor:
    """An argument on the workers; one that was not there yet is placed as its signals say, those of a scope as of a parameter."""
    if isinstance(leaf, Array):
        return leaf.held
    dtype = _shape(leaf)[1]
    held = on_workers(leaf if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else np.asarray(leaf, dtype))
    if signals:
        with emission_context.using(emission_context.interned(signals, "forward", None, False)):
            held.copy_(emission.emit("tag", (held,), not is_constrained(signals)))
    return held


def jit(function: Callable[..., Any], *, static_argnums: int | Sequence[int] = ()) -> Jitted:
    """Run a function of JAX on GT's workers, as `jax.jit` does where JAX is.

    Arguments and results are pytrees of arrays: of JAX, of NumPy, numbers, or results of earlier calls. Results are
    `gt.jax.Array`: they stay on the workers, and are not waited for until somebody fetches their values. JAX traces the function
    once for each structure, shapes and dtypes of its arguments; those whose numbers are in `static_argnums` are values of the
    program. Names of `jax.named_scope` are signals, by which a config shards the program. Raises `NotImplementedError` with the
    name of a primitive that cannot be computed.
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    return Jitted(function, numbers)
