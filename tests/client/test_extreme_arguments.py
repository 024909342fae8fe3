"""The whole public API with extreme arguments: one clear error or a value, and no other tensor harmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from effort import PROVED, cases
from fuzz.api_calls import encoded_session, public_calls, violation

CALLS = public_calls()
PARTS = 16


@pytest.fixture(scope="module")
def encoded() -> Iterator[Any]:
    """One session for all calls, so that what one harms another meets."""
    with encoded_session() as opened:
        yield opened


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_extreme_arguments_harm_nobody(encoded: Any, part: int) -> None:
    """Each function, method and operator, called with drawn arguments: what `violation` says of none."""
    count = cases(10)
    found = [
        wrong
        for name in list(CALLS)[part::PARTS]
        for seed in range(count)
        if (wrong := violation(name, CALLS[name], seed)) is not None
    ]
    PROVED["calls with extreme arguments, of which none harmed others"] += count * len(list(CALLS)[part::PARTS])
    assert found == []


FOUND = {
    "gt.mvlgamma": 11, "gt.range": 56, "F.upsample_nearest": 30, "Tensor.polygamma": 26, "Tensor.chunk": 8,
    "Tensor.diagonal": 3, "F.interpolate": 7004898, "gt.block_diag": 7018474, "gt.nonzero_static": 7023409,
    "special.hermite_polynomial_h": 7, "F.celu_": 9, "gt.conv3d": 1795800968004961, "F.local_response_norm": 1795465107021359,
}  # fmt: skip
"""Seeds that once found something; to each comes what it found."""


@pytest.mark.parametrize(("name", "seed"), FOUND.items())
def test_what_was_found_stays_found(encoded: Any, name: str, seed: int) -> None:
    """A drawn call that once broke a rule breaks none."""
    assert violation(name, CALLS[name], seed) is None
