"""Checks a device: every op, on samples in every dtype that it takes, against NumPy's kernels (`gt conformance --device`).

A result must have the op's dtype and shape, and be NumPy's to within some units in the last place of the largest element: exactly
for integers and booleans. Where NumPy's kernel raises, the device's must raise the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from gt.errors import GTError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import ALL_DTYPES, HALF_DTYPES, DType, as_dtype, bool_
from gt.ir.infer import infer
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.op_samples.op_samples import drawn
from gt.op_samples.sample import Array, OpSample
from gt.worker.base.backend import Backend
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.op_table.op_table import KERNELS

UNITS: Final = 64.0
"""The units in the last place by which float32, float64 and complex numbers may differ; sums are added in other orders."""
HALF_UNITS: Final = 4.0
"""Those of float16 and bfloat16, which are computed in float32 and rounded once."""
BY_OWN: Final = "its own"
BY_KIND: Final = {"f": [each for each in ALL_DTYPES if each.kind == "f"], "c": [each for each in ALL_DTYPES if each.kind == "c"],
                  "i": [each for each in ALL_DTYPES if each.kind == "i"], "b": [bool_]}  # fmt: skip


@dataclass(slots=True)
class OpReport:
    """What was found of an op in the dtypes that are computed in one way."""

    op: str
    by: str
    """By what it is computed: words for the table."""
    dtypes: list[str] = field(default_factory=list)
    calls: int = 0
    units: float = 0.0
    """The largest difference, in units in the last place of the largest element of a result."""
    failures: list[str] = field(default_factory=list)


def check_device(backend: Backend, ops: Sequence[str] = ()) -> Iterator[OpReport]:
    """Reports on each op, or those named, one after the other. Raises `GTError` for a name that is no op's."""
    unknown = [op for op in ops if op not in OPS]
    if unknown:
        raise GTError(f"{unknown[0]!r} is no op: `gt ops` lists them")
    choose = _chooser(backend)
    for op in ops or OPS:
        reports: dict[str, OpReport] = {}
        for samples in drawn(op):
            for sample in _in_every_dtype(samples[0]):
                _check(backend, choose, sample, reports)
        yield from reports.values()


def _chooser(backend: Backend) -> Callable[[KernelCall], tuple[str, Kernel]]:
    """By what a call is computed there, and its kernel."""
    if backend.torch is None:
        return lambda call: (BY_OWN, KERNELS[call.op](call))
    chosen = importlib.import_module("gt.worker.torch_kernels.kernel_choice")
    kernels = chosen.TorchKernels(backend.torch, prefers_host=False)  # NumPy's own need no check

    def choose(call: KernelCall) -> tuple[str, Kernel]:
        by, kernel = kernels.choose(call)
        return str(by.value), kernel

    return choose


def _in_every_dtype(sample: OpSample) -> Iterator[OpSample]:
    """The sample with its values, and what its attribute says, in each dtype of their kind; what the op refuses is left out."""
    kinds = {as_dtype(x.dtype).kind for x in sample.operands if isinstance(x, np.ndarray)}
    kind = next((each for each in "cfib" if each in kinds), "")
    said = sample.attributes.get("dtype")
    targets: Sequence[DType | None] = BY_KIND.get(kind, [None])
    for target in targets:
        operands = tuple(_as(x, kind, target) for x in sample.operands)
        for told in ALL_DTYPES if isinstance(said, DType) else (said,):
            attributes = sample.attributes if said is None else {**sample.attributes, "dtype": told}
            made = replace(sample, operands=operands, attributes=attributes)
            try:
                infer(made.op, made.specs, made.attributes)
            except GTError:
                continue
            yield made


def _as(x: Any, kind: str, target: DType | None) -> Any:
    """An operand in another dtype of its kind; of integers without a sign the absolute ones."""
    if not isinstance(x, np.ndarray) or target is None or as_dtype(x.dtype).kind != kind:
        return x
    with np.errstate(all="ignore"):
        return (x if target.is_signed or kind in "bfc" else np.abs(x)).astype(target.numpy)


def _check(
    backend: Backend, choose: Callable[[KernelCall], tuple[str, Kernel]], sample: OpSample, reports: dict[str, OpReport]
) -> None:
    result = sample.result
    box = tuple((0, size) for size in result.shape)
    specs = tuple(x if isinstance(x, str) else spec(x.dtype, x.shape) for x in sample.specs)
    call = KernelCall(backend.xp, sample.op, sample.attributes, specs, result, result.shape, box)
    expected = _computed(lambda: KERNELS[sample.op](replace(call, xp=np))(*sample.operands))
    by = BY_OWN
    try:
        by, kernel = choose(call)
        operands = [backend.from_host(x) if isinstance(x, np.ndarray) else x for x in sample.operands]
        found = _computed(lambda: backend.to_host(kernel(*operands)))
    except Exception as error:  # noqa: BLE001 — a kernel that cannot be made is a finding
        found = error
    report = reports.setdefault(by, OpReport(sample.op, by))
    name = next((x.dtype for x in specs if isinstance(x, Spec)), result.dtype).name
    if name not in report.dtypes:
        report.dtypes.append(name)
    report.calls += 1
    wrong, units = _difference(found, expected, result)
    report.units = max(report.units, units)
    if wrong:
        report.failures.append(f"{sample}: {wrong}")


def _computed(compute: Callable[[], Any]) -> Any:
    """A result as an array of the host, or the error that was raised in its place."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(compute())
    except Exception as error:  # noqa: BLE001 — whichever, both must raise it
        return error


def _difference(found: Any, expected: Any, result: Spec) -> tuple[str, float]:
    """What is wrong with a result, if anything, and how far it is from NumPy's in units in the last place."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if type(found) is type(expected):
            return "", 0.0
        return f"{_shown(found)}, where NumPy has {_shown(expected)}", 0.0
    if found.dtype != result.dtype.numpy or found.shape != result.shape:
        return f"{found.dtype}{list(found.shape)} is not {result}", 0.0
    if result.dtype.kind in "ib":
        count = int((found != expected).sum())
        return (f"{count} of {found.size} elements differ" if count else ""), 0.0
    units = _units(found, expected, result.dtype)
    most = HALF_UNITS if result.dtype in HALF_DTYPES else UNITS
    return ("" if units <= most else f"{units:.3g} units in the last place"), units if units < np.inf else 0.0


def _units(found: Array, expected: Array, dtype: DType) -> float:
    """The largest difference of two results; infinite where one is not finite and the other is something else."""
    if not found.size:
        return 0.0
    work = np.complex128 if dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = found.astype(work), expected.astype(work)
        finite = np.isfinite(b)
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        if not alike[~finite].all() or not np.isfinite(a[finite]).all():
            return float("inf")
        scale = max(
            float(np.abs(b[finite]).max(initial=0.0)) or 1.0, float(finfo(dtype).tiny) / float(finfo(dtype).eps)
        )
        largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return largest / (scale * float(finfo(dtype).eps))


def _shown(found: Any) -> str:
    return f"{type(found).__name__}: {found}" if isinstance(found, Exception) else "a result"


def table(reports: Sequence[OpReport]) -> str:
    """Lines for a terminal: op, by what, in which dtypes, calls, largest difference, verdict; then what fails, and the sums."""
    rows = [("op", "computed by", "dtypes", "calls", "units", "")]
    for each in reports:
        verdict = "ok" if not each.failures else f"{len(each.failures)} FAILED"
        rows.append((each.op, each.by, _dtypes(each.dtypes), str(each.calls), f"{each.units:.2g}", verdict))
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"FAILED {failure}" for each in reports for failure in each.failures[:3]]
    by: dict[str, set[str]] = {}
    for each in reports:
        by.setdefault(each.op, set()).add(each.by)
    for ways in dict.fromkeys(frozenset(each) for each in by.values()):
        ops = [op for op, found in by.items() if found == ways]
        lines.append(f"{len(ops)} by {' and '.join(sorted(ways))}: {' '.join(ops)}")
    failed = sum(len(each.failures) for each in reports)
    calls = sum(each.calls for each in reports)
    lines.append(f"{calls - failed} of {calls} calls of {len({each.op for each in reports})} ops as NumPy's")
    return "\n".join(lines) + "\n"


def _dtypes(names: list[str]) -> str:
    """Short names, in the order of the dtypes."""
    return " ".join(dtype.short for dtype in ALL_DTYPES if dtype.name in names)
