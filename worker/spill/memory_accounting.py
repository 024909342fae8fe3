"""Memory accounting: who holds what on this worker, by client and signal, counted for a `Survey` or when memory has run out.

The signal is not stored with each tensor. For every run the worker remembers its base and its program's signals, and for every
put its own signal, so a run costs one entry however many tensors it leaves. No array is changed here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.ir.instruction import MOVE, OUTPUT, Plan
from gt.worker.device.buffers import Buffers

from .spill_file import SpilledValue

if TYPE_CHECKING:
    from gt.worker.program.compiler import Program

Stores = dict[int, dict[int, Any]]
SignalsByOffset = Mapping[int, str]
"""By offset from a run's base, the signal of each tensor that it leaves."""
MAX_REMEMBERED_RUNS: Final = 1024
"""The runs of one client that are remembered before those that have left nothing are removed."""
OTHER_SIGNALS: Final = "(others)"
MAX_NAMED_HOLDERS: Final = 6
"""The most holders that an error names individually."""


class SignalMemory(NamedTuple):
    """The tensors of one client from one signal: their number, and their bytes in the worker's own memory, in memory shared
    between processes, and outside memory."""

    client: int
    signal: str
    tensors: int
    live: int
    shared: int
    spilled: int

    @property
    def nbytes(self) -> int:
        """The sum of these bytes."""
        return self.live + self.shared + self.spilled


def signals_of(plan: Plan) -> SignalsByOffset:
    """The signals of the tensors that a run of a plan leaves."""
    found = {}
    for offset, index in plan.survivors:
        made = plan.makers[index]
        while made.op == MOVE and made.inputs[0] & 3 == OUTPUT:  # a move is its reader's, who may be in no signal
            made = plan.makers[made.inputs[0] >> 2]
        found[offset] = "/".join(plan.tags[made.tag].signal)
    return found


class Origins:
    """The signals of the stored tensors of all clients."""

    def __init__(self) -> None:
        self.made: dict[int, dict[int, SignalsByOffset]] = {}
        """By client and base of a run; the base of a put is its tensor."""

    def note(self, client: int, base: int, signals: SignalsByOffset, store: Mapping[int, Any]) -> None:
        """Note that a run or a put has left tensors in `store`."""
        made = self.made.get(client)
        if made is None:
            made = self.made[client] = {}
        elif len(made) > MAX_REMEMBERED_RUNS and len(made) > 2 * len(store):
            made = self.made[client] = self._of_those_that_live(made, store)
        made[base] = signals

    def forget(self, client: int) -> None:
        """A client is gone."""
        self.made.pop(client, None)

    def signals(self, client: int, tensors: list[int]) -> Iterator[str]:
        """The signal of each of these tensors; '' if unknown."""
        made = self.made.get(client, {})
        bases = sorted(made)
        for tensor in tensors:
            at = bisect_right(bases, tensor) - 1
            yield made[bases[at]].get(tensor - bases[at], "") if at >= 0 else ""

    @staticmethod
    def _of_those_that_live(made: dict[int, SignalsByOffset], store: Mapping[int, Any]) -> dict[int, SignalsByOffset]:
        bases = sorted(made)
        found = (bisect_right(bases, tensor) - 1 for tensor in store)
        return {bases[at]: made[bases[at]] for at in sorted({at for at in found if at >= 0})}


def memory_by_signal(stores: Stores, origins: Origins, buffers: Buffers) -> list[SignalMemory]:
    """What is stored, the largest first. Memory that several tensors look at is counted with the first of them."""
    sums: dict[tuple[int, str], list[int]] = {}
    seen: set[Hashable] = set()
    for client, store in stores.items():
        tensors = sorted(store)
        for tensor, signal in zip(tensors, origins.signals(client, tensors), strict=True):
            value = store[tensor]
            key: Hashable
            if type(value) is SpilledValue:
                key, at, nbytes = value.outside, 3, value.outside.nbytes
            elif not hasattr(value, "dtype"):
                continue  # a fault, or a tensor of which this worker has no part
            elif (known := buffers.of(value)) is not None:
                (key, nbytes), at = known, 1
            else:
                key, at, nbytes = (client, tensor), 2, value.nbytes
            found = sums.setdefault((client, signal), [0, 0, 0, 0])
            found[0] += 1
            if key not in seen:
                seen.add(key)
                found[at] += nbytes
    return sorted(
        (SignalMemory(*who, *found) for who, found in sums.items()), key=lambda held: (-held.nbytes, held[:2])
    )


def pinned_bytes(stores: Stores) -> int:
    """The bytes of evicted values that are in pinned memory."""
    out = {value.outside for store in stores.values() for value in store.values() if type(value) is SpilledValue}
    return sum(outside.nbytes for outside in out if outside.pinned is not None)


def unstored_memory(program: Program, slots: Sequence[Any], stores: Stores, buffers: Buffers) -> list[SignalMemory]:
    """What the running plan has computed and not stored yet, by signal; the client is −1."""
    tags = program.plan.tags
    made = {step.writes: step.instruction.tag for block in program.blocks for step in block}
    made |= {move.target: move.instruction.tag for move in program.moves}
    seen = {_key(value, buffers)[0] for store in stores.values() for value in store.values()}
    sums: dict[str, list[int]] = {}
    for slot, value in enumerate(slots):
        key, nbytes = _key(value, buffers)
        if key is not None and key not in seen:
            seen.add(key)
            found = sums.setdefault("/".join(tags[made[slot]].signal) if slot in made else "", [0, 0])
            found[0] += 1
            found[1] += nbytes
    return [SignalMemory(-1, signal, count, nbytes, 0, 0) for signal, (count, nbytes) in sums.items()]


def _key(value: Any, buffers: Buffers) -> tuple[Hashable, int]:
    """A key for a value's buffer, in memory or outside, and its bytes; None if it has none."""
    if type(value) is SpilledValue:
        return value.outside, value.outside.nbytes
    return buffers.of(value) or (None, 0)


def who_holds(held: list[SignalMemory]) -> str:
    """'3,000 bytes by client 1 in signal a (2 tensors), …', the largest first."""
    order = sorted(held, key=lambda each: -each.nbytes)
    parts = [
        f"{each.nbytes:,} bytes by {'this plan' if each.client < 0 else f'client {each.client}'} in "
        f"{f'signal {each.signal}' if each.signal else 'no signal'} "
        f"({each.tensors:,} tensor{'' if each.tensors == 1 else 's'})"
        for each in order[:MAX_NAMED_HOLDERS]
    ]
    rest = sum(each.nbytes for each in order[MAX_NAMED_HOLDERS:])
    return ", ".join([*parts, f"{rest:,} bytes by others"] if rest else parts) or "nothing"


def largest_holders(held: list[SignalMemory], most: int) -> list[SignalMemory]:
    """At most so many holdings of each client; its others are summed up as the signal '(others)'."""
    counts: dict[int, int] = {}
    found: list[SignalMemory] = []
    rest: dict[int, list[int]] = {}
    for each in held:
        counts[each.client] = counts.get(each.client, 0) + 1
        if counts[each.client] <= most:
            found.append(each)
        else:
            sums = rest.setdefault(each.client, [0, 0, 0, 0])
            rest[each.client] = [a + b for a, b in zip(sums, each[2:], strict=True)]
    return found + [SignalMemory(client, OTHER_SIGNALS, *sums) for client, sums in rest.items()]
