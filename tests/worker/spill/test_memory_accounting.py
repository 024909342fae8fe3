"""Who holds what: signals are found by the run that made a tensor, and what is remembered of runs stays bounded."""

from __future__ import annotations

import numpy as np
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.worker.device.buffers import HostBuffers
from gt.worker.spill.memory_accounting import (
    MAX_REMEMBERED_RUNS,
    OTHER_SIGNALS,
    Origins,
    SignalMemory,
    largest_holders,
    memory_by_signal,
)


@settings(max_examples=cases(100), deadline=None)
@given(runs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.lists(st.booleans(), max_size=4)), max_size=40))
def test_any_tensor_is_found_by_its_run(runs: list[tuple[int, int, list[bool]]]) -> None:
    """Runs of any length that leave some of their tensors, with gaps of ids between them."""
    origins, store, signals, base = Origins(), {}, {}, 0
    for gap, signal, lives in runs:
        base += gap
        made = {offset: f"signal {signal}" for offset, lives_on in enumerate(lives) if lives_on}
        for offset, name in made.items():
            store[base + offset] = np.zeros(1)
            signals[base + offset] = name
        origins.note(1, base, made, store)
        base += max(1, len(lives))
    unknown = base + 100
    wanted = [*sorted(store), unknown]
    assert list(origins.signals(1, wanted)) == [*(signals[tensor] for tensor in sorted(store)), ""]
    kept = origins._of_those_that_live(origins.made.get(1, {}), store)
    assert len(kept) <= len(store)
    origins.made[1] = kept
    assert list(origins.signals(1, sorted(store))) == [signals[tensor] for tensor in sorted(store)]


def test_runs_that_left_nothing_are_forgotten() -> None:
    """However many runs there were, no more are remembered than a fixed number, or twice the tensors."""
    origins, store = Origins(), {}
    for base in range(10 * MAX_REMEMBERED_RUNS):
        store = {base: np.zeros(1)}
        origins.note(1, base, {0: "loop"}, store)
    assert len(origins.made[1]) <= MAX_REMEMBERED_RUNS + 1
    assert list(origins.signals(1, list(store))) == ["loop"]
    origins.forget(1)
    assert list(origins.signals(1, list(store))) == [""]


def test_bytes_are_counted_once_and_by_where_they_lie() -> None:
    """A view adds nothing to what it looks at, memory of others is shared, a fault takes none."""
    origins = Origins()
    base = np.zeros((4, 4))
    lent = np.frombuffer(bytearray(64), np.uint8)
    stores = {1: {0: base, 1: base.T, 2: lent, 3: ("a fault",)}, 2: {0: base[1:]}}
    origins.note(1, 0, {0: "a", 1: "b"}, stores[1])
    assert memory_by_signal(stores, origins, HostBuffers()) == [
        SignalMemory(1, "a", 1, base.nbytes, 0, 0),
        SignalMemory(1, "", 1, 0, 64, 0),
        SignalMemory(1, "b", 1, 0, 0, 0),
        SignalMemory(2, "", 1, 0, 0, 0),
    ]


def test_of_many_the_small_ones_are_added_up() -> None:
    """No more rows of a client than were asked for, and no byte is lost."""
    held = [SignalMemory(1, str(n), 1, n, 2 * n, 3 * n) for n in range(9, -1, -1)] + [SignalMemory(2, "x", 1, 1, 1, 1)]
    found = largest_holders(held, 3)
    assert [(each.client, each.signal) for each in found] == [
        (1, "9"),
        (1, "8"),
        (1, "7"),
        (2, "x"),
        (1, OTHER_SIGNALS),
    ]
    assert sum(each.nbytes for each in found) == sum(each.nbytes for each in held)
    assert found[-1].tensors == 7
