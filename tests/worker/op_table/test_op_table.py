"""The worker's table of ops: each op has a row, and each element-wise op says of every facet what it is, or why there is none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.special

from gt.ir.ops import OPS
from gt.worker.fusion.chain_shapes import ELEMENTWISE_FAMILIES
from gt.worker.kernels.special_functions import DAWSON_SERIES_FROM, composed_dawson
from gt.worker.op_table.op_table import OP_TABLE
from gt.worker.op_table.row import OpRow, Without

FACETS = ("lower", "cuda", "capturable")
"""What an element-wise op has, or says why not."""


def missing(table: Mapping[str, OpRow]) -> Iterator[str]:
    """'hypot: cuda', for each facet that a table does not speak of; 'hypot: row' if it has no row."""
    for name, op in OPS.items():
        row = table.get(name)
        if row is None:
            yield f"{name}: row"
        elif op.family in ELEMENTWISE_FAMILIES:
            yield from (f"{name}: {facet}" for facet in FACETS if getattr(row, facet) is None)


def test_no_facet_is_missing() -> None:
    assert list(missing(OP_TABLE)) == []
    assert OP_TABLE.keys() <= OPS.keys()


@pytest.mark.parametrize("facet", FACETS)
def test_a_missing_facet_is_named(facet: str) -> None:
    changed = {**OP_TABLE, "hypot": replace(OP_TABLE["hypot"], **{facet: None})}
    assert list(missing(changed)) == [f"hypot: {facet}"]
    assert list(missing({name: row for name, row in OP_TABLE.items() if name != "hypot"})) == ["hypot: row"]


def test_what_lacks_a_facet_says_why() -> None:
    told = [
        facet
        for row in OP_TABLE.values()
        for facet in (row.lower, row.cuda, row.capturable)
        if isinstance(facet, Without)
    ]
    assert told
    assert all(each.reason for each in told)


def test_rows_hold_what_goes_together() -> None:
    """What a chain can have along rows it has as a reduction; only what a chain has on a CPU reads late or goes along rows."""
    for name, row in OP_TABLE.items():
        lowered = row.lower is not None and not isinstance(row.lower, Without)
        assert lowered or not (row.along_rows or row.reads_late), name
        assert row.along_rows == (OPS[name].family == "reduction" or name in ("softmax", "log_softmax")), name


def series(x: float) -> float:
    """Dawson's integral by its Maclaurin series, Σ (−2)ᵏ x²ᵏ⁺¹ / (2k + 1)!!, in rational numbers."""
    exact = term = total = Fraction(x)
    for k in range(1, 64):
        term *= -2 * exact * exact / (2 * k + 1)
        total += term
    return float(total)


@pytest.mark.parametrize("x", [1e-30, 1e-8, 0.0142, 0.1, 0.2, 0.25, 0.7, 1.3, -1.3, 2.6, 3.1])
def test_dawsons_integral_is_composed_to_the_last_bits(x: float) -> None:
    """Where CuPy computes, which has no such function: here over NumPy."""
    assert composed_dawson(np, np.array([x]))[0] == pytest.approx(series(x), rel=1e-15, abs=0)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 2e-14)])
def test_dawsons_integral_is_composed_as_scipy_has_it(dtype: type, rtol: float) -> None:
    """Small and large numbers, on both sides of where its series begins, infinities, NaN and both zeros."""
    edge = [
        np.nextafter(DAWSON_SERIES_FROM, 0),
        DAWSON_SERIES_FROM,
        np.nextafter(DAWSON_SERIES_FROM, 100),
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
    ]
    x = np.concatenate([np.linspace(-60, 60, 4001), 10.0 ** np.linspace(-30, 30, 601), edge]).astype(dtype)
    with np.errstate(over="ignore"):
        found, expected = composed_dawson(np, x), scipy.special.dawsn(x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(expected[:-1]))
