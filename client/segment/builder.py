"""The segment builder: gathers instructions between two flushes and turns them into definitions and runs.

It uses no socket, clock or thread. A builder belongs to one client thread, but another thread may flush it. How an instruction
is appended is in `open_segment.py`. Output n of the segment being gathered is tensor `base + n`, so a flush renames nothing. A
value that is created and dies between two flushes is never mentioned elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Final

from gt.bounds import MAX_IDS
from gt.ir.dtypes import Scalar
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import Spec
from gt.wire.messages import Define, Drop, Free, Run

from .early_fetch import MAX_EARLY_BYTES
from .loop_period import LoopPeriods
from .open_segment import BuilderSession, Lock, OpenSegment
from .reference_counts import shared  # not compiled
from .signature import TracedSegment, segment_of
from .value import TensorValue

FLUSH_LENGTH: Final = 512
"""Instructions after which a segment is flushed by itself."""


class Builder(OpenSegment):
    """Gathers one thread's instructions for `session`, and sends them."""

    __slots__ = ("__weakref__",)

    def __init__(self, session: BuilderSession, number: int, lock: Lock) -> None:
        super().__init__(session, number, lock)
        self.limit(session.flush_length)

    def __del__(self) -> None:
        self.session.orphans += self.dead

    def limit(self, length: int) -> None:
        """Cut segments after `length` instructions or, where that is the usual length, where the stream repeats."""
        self.length = length
        self.periods = LoopPeriods(length) if length == FLUSH_LENGTH else None

    def flush_from_outside(self) -> bool:
        """`flush`, called by another thread; False when this builder's thread is in the middle of an instruction."""
        with self.lock:
            self.claimed = True
            try:
                if self.busy:
                    return False
                if self.capture is not None:
                    self.capture.interrupt("another thread needs what was computed here")
                self._send()
            finally:
                self.claimed = False
        return True

    def allocate(self, spec: Spec) -> TensorValue:
        """The value of a tensor that comes from outside (a put). Its id lies before those of all results."""
        value = TensorValue(self, self.puts, spec)
        value.watch()
        self.puts += 1
        return value

    def release(self) -> None:
        """Send the deaths that no instruction that was gathered still reads, and nothing else."""
        if self.dead:
            with self.lock, self.session.exclusive():
                dying, freed = self._deaths(self.inputs)
                slots = list(self.inputs)
                self.dead += [slots[slot] for slot in dying]
                if freed:
                    self.session.sink(_free_messages(freed, 0))

    def flush(self) -> None:
        """Send what was gathered: at most one definition, one run, and the deaths since the last flush."""
        if self.capture is not None:
            if len(self.record) < self.length:
                return
            self.capture.interrupt(f"it has more than {self.length or len(self.record)} instructions")
        if self.record or self.dead:
            self._send()
            self.session.pace()

    def _expect(self) -> None:
        """Set the length at which the segment under way is sent."""
        self.length = self.session.flush_length if self.periods is None else self.periods.length

    def fetch(self, value: TensorValue) -> Any:
        """Send what was gathered, because this builder's thread fetches a value. Its future, if it was asked for with its run."""
        if self.record or self.dead:
            self._send(value)
        return self.early.fetched(value.id, value.spec.nbytes)

    def _send(self, wanted: TensorValue | None = None) -> None:
        """Send what was gathered, and ask for a value that is `wanted` if that makes it."""
        with self.lock, self.session.exclusive():
            messages = self._messages(wanted)
            if messages:
                self.session.sink(messages)

    def _messages(self, wanted: TensorValue | None = None) -> list[Any]:
        inputs = self.inputs
        dying, freed = self._deaths(inputs)
        record = self.record
        if not record:
            return _free_messages(freed, 0)
        base, alive, scalars, values = self.base, self._alive(), self.scalars, self.values
        fetch: list[int] = []
        if wanted is not None and wanted.id >= base and wanted.spec.nbytes <= MAX_EARLY_BYTES:
            fetch = self._ask(wanted.id - base, wanted.spec)
        else:
            at = self.early.output_of(record, None)
            if at >= 0 and alive[at]:
                fetch = self._ask(at, values[at].spec)
        del values
        self.record, self.values, self.scalars, self.inputs, self.foreign = [], [], [], {}, []
        self.many = 0
        self.base = base + len(record)
        messages = _free_messages(freed, MAX_IDS)
        made = self.session.definitions.made
        known = self._definition((tuple(record), alive), record, alive, len(inputs), messages)
        periods = self.periods
        if periods is not None:
            if made == self.session.definitions.made:
                periods.known()
            else:
                periods.new(record, alive)
        # the equal record of the definition lives anyway: thousands of tuples that live until a fetch cost a fifth of a chain
        self.early.sent(base, self.session.definitions.recent[known].record, None)
        self._expect()
        messages.append(Run(known, base, list(inputs), scalars, dying, freed, fetch))
        return messages

    def _ask(self, output: int, known: Spec) -> list[int]:
        """Ask for an output of the segment that is about to be sent. Returns what its run says of that."""
        tensor = self.base + output
        request = self.session.expect(tensor, known)
        if request is None:
            return []
        number, future = request
        self.early.asked = tensor, future
        return [number, output]

    def _deaths(self, inputs: dict[int, int]) -> tuple[list[int], list[int]]:
        """(which of a run's inputs nobody needs after it, the ids of all others that died)."""
        dead = self.dead[:]
        del self.dead[: len(dead)]
        freed, self.session.orphans = self.session.orphans, []
        dying: list[int] = []
        for number in dead:
            if number in inputs:
                dying.append(~inputs[number])
            else:
                freed.append(number)
        return dying, freed

    def _alive(self) -> bytes:
        """One byte for each result, 1 if anything refers to it; from now on the builder hears of their deaths."""
        values = self.values
        alive = shared(values)
        value: TensorValue
        for value in compress(values, alive):
            value.watch()
        return alive

    def _definition(
        self, key: Any, record: list[tuple[Any, ...]], alive: bytes, inputs: int, messages: list[Any]
    ) -> int:
        """The number of a definition; appends the messages that make it known, if it is new."""
        definitions = self.session.definitions
        known = definitions.find(key)
        if known is None:
            known, dropped = definitions.add(key, len(record))
            definitions.recent[known].record = record
            messages += map(Drop, dropped)
            messages.append(Define(known, pack_segment(segment_of(record, alive, inputs))))
        return known

    def finish(self) -> tuple[list[tuple[Any, ...]], bytes]:
        """`flush`, and what was sent: the record, and which of its results were alive."""
        record = self.record
        with self.lock, self.session.exclusive():
            base = self.base
            values = self.values
            self.session.sink(self._messages())
            alive = bytes([getattr(value, "notice", None) is not None for value in values])
        assert self.base == base + len(record), "nobody else flushed"
        del values
        self.session.pace()
        return record, alive

    def run(
        self,
        key: Any,
        traced: TracedSegment,
        inputs: list[TensorValue],
        scalars: list[Scalar],
        bind: Callable[[list[TensorValue]], None],
    ) -> None:
        """Send a run of `traced`, which is known by `key`, behind what was gathered.

        `bind` is given the survivors' values before the run leaves. Empties `inputs`: those to which then nobody refers
        die with the run.
        """
        for value in inputs:
            if value.owner is not self:
                self._adopt(value)
        if self.record:
            self._send()
        with self.lock, self.session.exclusive():
            base, early = self.base, self.early
            at = early.output_of(traced.record, traced)
            fetch = self._ask(at, traced.record[at][0].result) if at >= 0 and traced.alive[at] else []
            self.base = base + len(traced.record)
            numbers = [value.id for value in inputs]
            bind(self._survivors(base, traced.results))
            foreign, self.foreign = self.foreign, []
            inputs.clear()
            dying, freed = self._deaths({number: ~slot for slot, number in enumerate(numbers)})
            messages = _free_messages(freed, MAX_IDS)
            known = self._definition(key, traced.record, traced.alive, traced.inputs, messages)
            early.sent(base, traced.record, traced)
            messages.append(Run(known, base, numbers, scalars, dying, freed, fetch))
            self.session.sink(messages)
            del foreign
        self.session.pace()

    def _survivors(self, base: int, results: list[tuple[int, Spec]]) -> list[TensorValue]:
        """The values of those outputs that outlive a run; `base` is the id of the first output."""
        made: list[TensorValue] = []
        for at, spec in results:
            value: TensorValue = TensorValue.__new__(TensorValue)  # half the time of a call that runs an `__init__`
            value.owner = self
            value.id = base + at
            value.spec = spec
            value.watch()
            made.append(value)
        return made

    def check(self) -> None:
        """The invariants of a builder between calls."""
        scalars = sum(isinstance(operand, str) for entry in self.record for operand in entry[0].operands)
        assert scalars == len(self.scalars), "one scalar for each scalar operand"
        assert [~at for at in self.inputs.values()] == list(range(len(self.inputs))), "input slots are dense"
        assert not self.busy, "nothing is half in"
        assert [value.id - self.base for value in self.values] == list(range(len(self.record))), "one result for each"


def _free_messages(freed: list[int], limit: int) -> list[Any]:
    """`Free` messages for the dead tensors, until at most `limit` are left to go with a run."""
    messages: list[Any] = []
    while len(freed) > limit:
        messages.append(Free(freed[:MAX_IDS]))
        del freed[:MAX_IDS]
    return messages
