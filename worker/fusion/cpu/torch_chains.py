"""Chains of a worker that computes with PyTorch in the host's memory: NumPy's functions over strips, on the bytes of the tensors.

An element-wise op by itself goes through memory once for each op, and a chain once for all. PyTorch has nothing of that kind that
needs no compiler of C++. Both look at the same memory, so arrays are wrapped on the way in and out, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gt.worker.base.backend import Backend
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.fusion.chains import Chain
from gt.worker.fusion.incremental import Incremental
from gt.worker.program.compiler import Action, Slots

from . import chain_lowering, strip_executor

PYTORCHS: Final = frozenset(("softmax", "log_softmax"))
"""Ops that PyTorch's own function computes, and no chain."""


class _LeftToStepsError(Exception):
    """A chain's sources lie so in memory that its steps must run one by one."""


def able(call: KernelCall) -> bool:
    """Whether a chain can have this call, whose array module is NumPy."""
    return call.op not in PYTORCHS and chain_lowering.able(call)


def compile_chain(
    chain: Chain, backend: Backend, thread_pool: ThreadPool, dead: tuple[int, ...], by_steps: Action
) -> Incremental[Action | None]:
    """The action that runs a chain over slots with tensors; None where there is none for it."""
    inner = yield from strip_executor.compile_chain(chain, thread_pool, dead, _leave)
    if inner is None:
        return None
    return _over_tensors(inner, chain, backend, dead, by_steps)


def _leave(_slots: Slots) -> None:
    raise _LeftToStepsError


def _over_tensors(
    inner: Callable[..., None], chain: Chain, backend: Backend, dead: tuple[int, ...], by_steps: Action
) -> Action:
    to_host, from_host = backend.to_host, backend.from_host
    tensors = tuple(dict.fromkeys(source.slot for source in chain.sources if not isinstance(source.spec, str)))
    numbers = tuple(dict.fromkeys(source.slot for source in chain.sources if isinstance(source.spec, str)))
    made = tuple(chain.values[output].slot for output in chain.outputs)

    def run(slots: Slots) -> None:
        held: dict[int, Any] = {slot: to_host(slots[slot]) for slot in tensors}
        for slot in numbers:
            held[slot] = slots[slot]
        try:
            inner(held)
        except _LeftToStepsError:
            by_steps(slots)
            return
        for slot in made:
            slots[slot] = from_host(held[slot])
        for slot in dead:
            slots[slot] = None

    return run
