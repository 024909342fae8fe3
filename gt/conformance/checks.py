"""The checks of one op of a package. Each yields a plain sentence for what it finds wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from gt.errors import DTypeError, GradientError, GTError, ShapeError
from gt.ir.dtypes import ALL_DTYPES, DType
from gt.ir.infer import derive
from gt.ir.spec import Spec
from gt.op_packages.definition import NoGradient, PackageOp
from gt.op_packages.letters import ANY
from gt.sharding.placement import Partial, Placement, Shard
from gt.worker.base.backend import Backend

from .cases import Array, Case, in_dtypes
from .shards import WEIGHTS, joined, options_of, run_option, run_whole

MAX_GRADIENT_ELEMENTS: Final = 64
"""Of how many elements gradients are compared with finite differences: each takes two calls."""
GRADIENT_CASES: Final = 4


class Subject(NamedTuple):
    """What is checked: an op under the name that instructions have, on a device, by its cases."""

    title: str
    op: PackageOp
    backend: Backend
    cases: list[Case]


def _said(placement: Placement | None) -> str:
    if isinstance(placement, Shard):
        return f"cut along dimension {placement.dim}"
    return f"partial ({placement.op})" if isinstance(placement, Partial) else "whole"


def _arguments(op: PackageOp, case: Case) -> dict[str, Any]:
    """Attributes as kernels get them."""
    return {name: value.numpy if isinstance(value, DType) else value for name, value in case.attributes.items()}


def _frozen(array: Array) -> Array:
    out = array.copy()
    out.flags.writeable = False
    return out


def _differs(found: Array, expected: Array, tolerance: float) -> str | None:
    """How two arrays differ; None if they are as close as `tolerance` says."""
    if found.shape != expected.shape:
        return f"shape {found.shape} in place of {expected.shape}"
    if found.dtype.kind in "biu":
        return None if np.array_equal(found, expected) else "other values"
    if not found.size or np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        apart = np.nanmax(np.abs(np.asarray(found, np.complex128) - np.asarray(expected, np.complex128)))
    return f"values up to {apart:.3g} apart (tolerance {tolerance:g})"


def check_shapes(subject: Subject) -> Iterator[str]:
    """The kernel's result has the shape and dtype that the rules say, in each dtype; it is new, and operands are left alone."""
    op, backend = subject.op, subject.backend
    xp = backend.xp
    function = op.kernel if backend.kind == "cpu" or op.gpu_kernel is None else op.gpu_kernel
    for case in [each for base in subject.cases for each in (base, *in_dtypes(op, base))]:
        if not case.result.size:
            continue
        given = [backend.from_host(_frozen(x)) if isinstance(x, np.ndarray) else x for x in case.operands]
        try:
            out = function(xp, *given, **_arguments(op, case))
        except ValueError as error:
            changes = "read-only" in str(error)
            yield f"its kernel {'changes an operand' if changes else f'fails ({error})'} for {case}"
            return
        wanted = case.result
        if getattr(out, "shape", None) != wanted.shape or getattr(out, "dtype", None) != wanted.dtype.numpy:
            is_array = hasattr(out, "shape") and hasattr(out, "dtype")
            shown = f"{out.dtype} of shape {out.shape}" if is_array else type(out).__name__
            yield f"its kernel returns {shown} for {case}, and its rules say {wanted}"
            return
        if isinstance(out, np.ndarray) and any(
            isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in given
        ):
            continue  # a worker copies it
        again = function(xp, *given, **_arguments(op, case))
        if isinstance(out, np.ndarray) and wanted.size and again is out:
            yield f"its kernel returns the same array twice, which later calls would change, for {case}"
            return


def check_reference(subject: Subject) -> Iterator[str]:
    """The kernel computes what the package's reference in NumPy does."""
    op = subject.op
    if op.reference is None:
        yield "it has no reference= in NumPy to compare its kernel with"
        return
    for case in subject.cases:
        expected = np.asarray(op.reference(*case.operands, **_arguments(op, case)))
        wrong = _differs(run_whole(case, subject.backend), expected, op.tolerance)
        if wrong is not None:
            yield f"its kernel and its reference have {wrong} for {case}"
            return


def check_rows(subject: Subject) -> Iterator[str]:
    """Every sharding option, brute-forced: parts of operands as it says, the kernel on each, joined as it says, is the whole."""
    seen: set[tuple[Any, ...]] = set()
    for case in subject.cases:
        whole = run_whole(case, subject.backend)
        for weights in WEIGHTS:
            for option in options_of(case, weights):
                if (option, case.specs) in seen:
                    continue
                try:
                    results = list(run_option(case, subject.backend, option, weights))
                    found = [_differs(each, whole, subject.op.tolerance) for each in joined(results, option)]
                    wrong = next(filter(None, found), None)
                except Exception as error:  # noqa: BLE001 — whatever the code of a package raises
                    wrong = f"an error ({type(error).__name__}: {error})"
                if wrong is not None:
                    seen.add((option, case.specs))
                    operands = ", ".join(
                        f"{name} {_said(placement)}"
                        for name, placement in zip(subject.op.operands, option.inputs, strict=False)
                    )
                    yield (
                        f"the sharding row {operands} → result {_said(option.outputs[0])} gives {wrong} on workers of weights "
                        f"{weights} for {case}"
                    )


def check_bits(subject: Subject) -> Iterator[str]:
    """The same call gives the same bits; where the op says so, so does each part."""
    for case in subject.cases:
        whole = run_whole(case, subject.backend)
        if run_whole(case, subject.backend).tobytes() != whole.tobytes():
            yield f"its kernel gives other bits when it is called again for {case}"
            return
        for weights in WEIGHTS if subject.op.bitwise else ():
            for option in options_of(case, weights):
                if any(isinstance(each, Partial) for each in (*option.outputs, *option.inputs)):
                    continue
                results = list(run_option(case, subject.backend, option, weights))
                if any(each.tobytes() != whole.tobytes() for each in joined(results, option)):
                    yield f"it says bitwise=True, and its parts have other bits than the whole for {case}"
                    return


def check_empty(subject: Subject) -> Iterator[str]:
    """Operands without elements, along each letter and each leading dimension, give what the rules say."""
    op = subject.op
    for case in subject.cases[:GRADIENT_CASES]:
        for letter, arrays in _emptied(subject, case):
            empty = case.with_arrays(arrays)
            try:
                found = run_whole(empty, subject.backend)
                expected = None if op.reference is None else op.reference(*empty.operands, **_arguments(op, empty))
            except Exception as error:  # noqa: BLE001 — whatever the code of a package raises
                yield f"no elements along {letter} give an error ({type(error).__name__}: {error}) for {empty}"
                return
            if found.shape != empty.result.shape:
                yield f"no elements along {letter} give shape {found.shape} in place of {empty.result} for {empty}"
                return
            wrong = None if expected is None else _differs(found, np.asarray(expected), op.tolerance)
            if wrong is not None:
                yield f"no elements along {letter}: its kernel and its reference have {wrong} for {empty}"
                return


def _emptied(subject: Subject, case: Case) -> Iterator[tuple[str, list[Array]]]:
    """The arrays of a case without elements along each letter, and along the first leading dimension."""
    letters = subject.op.read_letters(subject.title, [x.shape for x in case.arrays], case.attributes)
    terms = [(term, term.removeprefix(ANY)) for term in letters.operands]
    for letter in dict.fromkeys(each for _, fixed in terms for each in fixed if each.isalpha()):
        yield (
            letter,
            [
                np.take(x, [], axis=x.ndim - len(fixed) + fixed.index(letter)) if letter in fixed else x
                for x, (_, fixed) in zip(case.arrays, terms, strict=True)
            ],
        )
    if letters.result.startswith(ANY) and all(
        x.ndim > len(fixed) for x, (term, fixed) in zip(case.arrays, terms, strict=True) if term.startswith(ANY)
    ):
        yield (
            "the first dimension",
            [x[:0] if term.startswith(ANY) else x for x, (term, _) in zip(case.arrays, terms, strict=True)],
        )


def check_refusals(subject: Subject) -> Iterator[str]:
    """Operands of other dtypes, dimensions and sizes than the op takes are refused, before anything is computed."""
    op, case = subject.op, subject.cases[0]
    wrong: list[tuple[str, tuple[Spec | str, ...]]] = []
    arrays = case.arrays
    for at, (name, domain) in enumerate(zip(op.operands, op.domains, strict=True)):
        other = next((dtype for dtype in ALL_DTYPES if not PackageOp.allows(domain, dtype)), None)
        if other is not None:
            changed = [x.astype(other.numpy) if at == place else x for place, x in enumerate(arrays)]
            wrong.append((f"{name} of {other}", case.with_arrays(changed).specs))
    letters = op.read_letters(subject.title, [x.shape for x in arrays], case.attributes)
    for at, (name, term) in enumerate(zip(op.operands, letters.operands, strict=True)):
        if not term.startswith(ANY) and isinstance(op.letters, str):
            changed = [x[None] if at == place else x for place, x in enumerate(arrays)]
            wrong.append((f"{name} with a dimension more", case.with_arrays(changed).specs))
    wrong.append(("no operand", ()))
    for what, specs in wrong:
        try:
            derive(subject.title, specs, case.attributes)
        except (ShapeError, DTypeError):
            continue
        except GTError as error:
            yield f"{what} is refused, but not as a wrong shape or dtype: {error}"
        else:
            yield f"{what} is not refused"


def check_gradient(subject: Subject) -> Iterator[str]:
    """The gradient agrees with central differences, in float64, on one worker in this process."""
    if subject.op.gradient is None or isinstance(subject.op.gradient, NoGradient):
        return
    from gt.client.autograd.gradcheck import gradcheck
    from gt.client.ops.creation import tensor
    from gt.client.package_ops import namespace

    package, _, _ = subject.title.partition("::")
    function = getattr(namespace(package), subject.op.name)
    small = [case for case in subject.cases if 0 < sum(x.size for x in case.arrays) <= MAX_GRADIENT_ELEMENTS]
    for case in small[:GRADIENT_CASES]:
        count = len(case.arrays)
        numbers = dict(zip(subject.op.numbers, case.operands[count:], strict=True))
        tensors = [tensor(x, requires_grad=x.dtype.kind in "fc") for x in case.arrays]
        if not any(each.requires_grad for each in tensors):
            return
        try:
            gradcheck(lambda *given, said={**numbers, **case.attributes}: function(*given, **said), tensors)
        except GradientError as error:
            text = str(error).removeprefix("gradcheck: ").splitlines()
            yield f"its gradient is wrong for {case}: {text[0]}"
            return
    if not small:
        yield f"none of its samples has at most {MAX_GRADIENT_ELEMENTS} elements, on which its gradient could be checked"


Check = Callable[[Subject], Iterator[str]]
CHECKS: Final[dict[str, Check]] = {
    "shapes": check_shapes,
    "reference": check_reference,
    "gradient": check_gradient,
    "rows": check_rows,
    "bits": check_bits,
    "empty": check_empty,
    "refusals": check_refusals,
}
"""In the order in which they run and are shown."""
