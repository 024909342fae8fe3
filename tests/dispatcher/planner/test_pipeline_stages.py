"""Units are dealt out to stages as the definition says, whatever their sizes are."""

from __future__ import annotations

from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.pipeline_stages import balanced
from gt.turns import finish


def defined(sizes: list[int], stages: int) -> list[int]:
    """The cuts by definition, stretch by stretch: the least largest sum, of these the least number of units, then the first."""
    count = len(sizes)
    best = [[((sum(sizes[:end]), end), 0) for end in range(count + 1)]]
    for _ in range(1, stages):
        before = best[-1]
        best.append(
            [
                min(
                    ((max(before[cut][0][0], sum(sizes[cut:end])), max(before[cut][0][1], end - cut)), cut)
                    for cut in range(end + 1)
                )
                for end in range(count + 1)
            ]
        )
    cuts, end = [], count
    for table in reversed(best[1:]):
        end = table[end][1]
        cuts.append(end)
    return cuts[::-1]


@settings(max_examples=cases(200))
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1 << 48)), max_size=14), st.integers(1, 6))
def test_units_are_dealt_out_as_the_definition_says(sizes: list[int], stages: int) -> None:
    assert finish(balanced(sizes, stages)) == defined(sizes, stages)
