"""How the memory of a CUDA graph is dealt out; that no value depends on graphs is in `tests/gpu/test_captures.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gt.worker.cuda_graphs.graph_memory import ALLOCATION_ALIGNMENT, lay_out
from gt.worker.device.graph_capture import AllocationEvent


@given(st.lists(st.one_of(st.integers(1, 5000), st.integers(-40, -1)), max_size=60))
def test_what_lives_at_the_same_time_lies_apart(drawn: list[int]) -> None:
    """A positive number takes so much memory, a negative one frees one of those that are there."""
    log: list[AllocationEvent] = []
    live: list[int] = []
    sizes: list[int] = []
    for number in drawn:
        if number > 0:
            live.append(len(sizes))
            log.append(AllocationEvent(len(sizes), number))
            sizes.append(number)
        elif live:
            log.append(AllocationEvent(live.pop(number % len(live)), -1))
    dealt = lay_out(log)
    assert dealt.sizes == tuple(sizes)
    assert [at for at, offset in enumerate(dealt.offsets) if offset is None] == sorted(live), "what stays has a place"
    held: dict[int, tuple[int, int]] = {}
    for number, nbytes in log:
        offset = dealt.offsets[number]
        if nbytes < 0:
            del held[number]
        elif offset is not None:
            assert offset % ALLOCATION_ALIGNMENT == 0
            assert offset + nbytes <= dealt.arena
            assert all(offset + nbytes <= first or last <= offset for first, last in held.values())
            held[number] = (offset, offset + nbytes)
