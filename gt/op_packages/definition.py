"""The declaration of an op that a package brings: all facets of it in one object, which client, dispatcher and workers read.

A package says what its ops are called, what they take, how shards of them join and what computes them; how they are checked
(`reference`, `samples`) is part of it. Everything else of an op, such as its plans, is GT's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gt.errors import DTypeError, GTError, ShapeError
from gt.ir.attributes import Attributes
from gt.ir.dtypes import BY_NAME, DType, bool_, int64
from gt.ir.infer import DOMAIN_NAMES, DOMAINS
from gt.ir.ops import Op
from gt.ir.spec import Spec, spec

from .declared_faults import NUMBER_KINDS, faults_of
from .letters import ANY, Cuts, Letters, cuts_of, fit_letters, parse_letters, result_shape

FAMILY: Final = "package"
"""The family of all of them in the op table."""


class NoGradient:
    """The type of `NO_GRADIENT`."""

    def __repr__(self) -> str:
        return "NO_GRADIENT"


NO_GRADIENT: Final = NoGradient()
"""In place of a gradient: nothing flows back through the op, as through `floor`."""


@dataclass(frozen=True)
class PackageOpSample:
    """One call for `gt conformance`: arrays of NumPy by the names of operands, and numbers and attributes that differ from the
    defaults."""

    operands: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackageOp:
    """An op that a package brings; called as `gt.ops.<package>.<name>(*operands, *numbers, **attributes)`.

    * `version` counts up whenever results, arguments or rules change: processes with different versions do not compute together.
    * `operands` are the names of tensors. `numbers` are Python numbers by name with their defaults: each call may have others,
      and none needs another plan. `attributes` are by name (kind, default), where kind is one of 'axis', 'axes', 'bool', 'dtype',
      'shape', 'size', 'sizes' and 'steps': shapes and plans may depend on them.
    * `letters` say how the op may be sharded (`letters.py`): text, or a function of the operands' shapes and the attributes that
      returns it. `reduces` is how results join ('sum', 'prod', 'max' or 'min') where a letter that the result lacks is cut;
      without it, such letters are not cut. `linear` names operands in which the op is linear: sums that are still to be added
      up may pass.
    * `dtypes` is what operands may be ('float', 'real', 'number', 'any', … or names of dtypes), for all or by name. Operands of
      one kind come in one dtype, to which the client casts them. `result_dtype` is 'same' (as the first operand), 'real' or
      'complex' (its parts, a number of such parts), 'bool', 'int64' or the name of a dtype.
    * `shape`, a function of the operands' shapes and the attributes, returns the result's; needed if the letters do not say it.
    * `kernel(xp, *operands, *numbers, **attributes)` computes the result, or a worker's part of it, with the array module `xp`
      (NumPy on a CPU, CuPy on a GPU). It returns a new array of exactly the result's shape and dtype, changes no operand, and is
      never called for a part without elements. `gpu_kernel`, of the same form, is called in its place on a GPU.
    * `gradient(call, grad)` returns the gradient of each operand (one tensor, or a tuple with None where there is none) with GT's
      functions and the package's ops. `call["x"]` is an operand, number or attribute, `call.result` the result, `call.needs("x")`
      whether that gradient is wanted. `gradient_reads`: what the rule reads, 'operands', 'result', 'both' or 'nothing'.
      `NO_GRADIENT`: nothing flows back. None: `backward` through the op is an error.
    * `bitwise`: each element of the result has the same bits however operands are cut, so that deterministic sessions may.
    * `reference` is the same in NumPy, written another way, with the kernel's arguments but for `xp`. `samples(rng)` yields the
      calls to check (`Sample`), where those made from the letters will not do. `tolerance` is how far kernel and reference, or
      whole and shards, may differ, relative to 1 and the value, in float64.
    """

    name: str
    version: int
    kernel: Callable[..., Any]
    operands: tuple[str, ...]
    letters: str | Callable[..., str]
    numbers: Mapping[str, bool | int | float | complex] = field(default_factory=dict)
    attributes: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    reduces: str = ""
    linear: tuple[str, ...] = ()
    dtypes: str | Mapping[str, str] = "float"
    result_dtype: str = "same"
    shape: Callable[..., Sequence[int]] | None = None
    gpu_kernel: Callable[..., Any] | None = None
    gradient: Callable[..., Any] | NoGradient | None = None
    gradient_reads: Literal["operands", "result", "both", "nothing"] = "operands"
    bitwise: bool = False
    reference: Callable[..., Any] | None = None
    samples: Callable[[Any], Iterable[PackageOpSample]] | None = None
    tolerance: float = 1e-9
    doc: str = ""

    def __post_init__(self) -> None:
        wrong = next(faults_of(self), None)
        if wrong is not None:
            raise ValueError(f"op {self.name!r}: {wrong}")

    @property
    def domains(self) -> tuple[str, ...]:
        """What each operand may be."""
        if isinstance(self.dtypes, str):
            return (self.dtypes,) * len(self.operands)
        return tuple(self.dtypes[name] for name in self.operands)

    @property
    def kinds(self) -> str:
        """The kinds of its numbers."""
        return "".join(NUMBER_KINDS[type(number)] for number in self.numbers.values())

    @staticmethod
    def allows(domain: str, dtype: DType) -> bool:
        """Whether an operand of a domain, or of one of these dtypes, may have this dtype."""
        return dtype.kind in DOMAINS[domain] if domain in DOMAINS else dtype.name in domain.split()

    def row(self, title: str) -> Op:
        """Its row in the op table of this process, under the name by which instructions have it."""
        return Op(
            FAMILY,
            len(self.operands) + len(self.numbers),
            attributes={name: kind for name, (kind, _) in self.attributes.items()},
            scalars="any",
            doc=self.doc,
            rule=lambda operands, attributes: self.infer(title, operands, attributes),
        )

    def read_letters(self, op: str, shapes: Sequence[tuple[int, ...]], attributes: Attributes) -> Letters:
        """The letters for operands of these shapes. Raises `GTError` where the package's function gives none."""
        if isinstance(self.letters, str):
            return parse_letters(self.letters, len(self.operands))
        text = self._ask(op, "letters", self.letters, shapes, attributes)
        try:
            return parse_letters(text, len(self.operands))
        except (ValueError, AttributeError) as error:
            raise GTError(f"{op}: its package gives no letters for shapes {_listed(shapes)}: {error}") from None

    def infer(self, op: str, operands: Sequence[Spec | str], attributes: Attributes) -> Spec:
        """The spec of the result; `op` is its name in messages. Raises `ShapeError` or `DTypeError`."""
        count = len(self.operands)
        tensors = [operand for operand in operands[:count] if isinstance(operand, Spec)]
        numbers = [operand for operand in operands[count:] if isinstance(operand, str)]
        if len(tensors) != count or "".join(numbers) != self.kinds or len(operands) != count + len(numbers):
            raise DTypeError(f"{op} takes {count} tensors, and numbers of kinds {self.kinds!r}")
        self._check_dtypes(op, tensors)
        shapes = [tensor.shape for tensor in tensors]
        letters = self.read_letters(op, shapes, attributes)
        fit = fit_letters(op, letters, self.operands, shapes)
        known = result_shape(letters, fit)
        shape = known
        if self.shape is not None:
            shape = _sizes(op, self._ask(op, "shape", self.shape, shapes, attributes))
            fixed = len(letters.result.removeprefix(ANY)) + len(fit.leading)
            if len(shape) != fixed or (known is not None and shape != known):
                raise GTError(f"{op}: its package's shape {shape} is not what its letters say, {letters.result}")
        if shape is None:
            raise GTError(f"{op}: its letters do not say the shape of the result, and its package has no rule for it")
        return spec(self._result(tensors[0].dtype), shape)

    def cuts(
        self, op: str, operands: Sequence[Spec | str], attributes: Attributes
    ) -> tuple[Cuts, tuple[Cuts | None, ...]]:
        """Where the result and each operand may be cut; None for numbers."""
        shapes = [operand.shape for operand in operands if isinstance(operand, Spec)]
        letters = self.read_letters(op, shapes, attributes)
        result, cut = cuts_of(letters, fit_letters(op, letters, self.operands, shapes), shapes)
        return result, (*cut, *(None,) * len(self.numbers))

    def _check_dtypes(self, op: str, tensors: Sequence[Spec]) -> None:
        dtypes: dict[str, DType] = {}
        for name, domain, tensor in zip(self.operands, self.domains, tensors, strict=True):
            if not self.allows(domain, tensor.dtype):
                raise DTypeError(f"{op}: {name} holds {DOMAIN_NAMES.get(domain, domain)}, not {tensor.dtype}")
            if dtypes.setdefault(domain, tensor.dtype) is not tensor.dtype:
                raise DTypeError(f"{op}: {name} is of {tensor.dtype} and another operand of {dtypes[domain]}: cast one")

    def _result(self, dtype: DType) -> DType:
        words = {"same": dtype, "bool": bool_, "int64": int64, "real": dtype.to_real(), "complex": dtype.to_complex()}
        return words.get(self.result_dtype) or BY_NAME[self.result_dtype]

    def _ask(
        self, op: str, what: str, rule: Callable[..., Any], shapes: Sequence[tuple[int, ...]], attributes: Attributes
    ) -> Any:
        """What a rule of the package says. It refuses shapes by `ShapeError`, `DTypeError` or `ValueError`."""
        try:
            return rule(*shapes, **attributes)
        except GTError:
            raise
        except ValueError as error:
            raise ShapeError(f"{op}: {error}") from None
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise GTError(f"{op}: its package's rule of {what} fails for shapes {_listed(shapes)}: {said}") from error


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def _sizes(op: str, shape: object) -> tuple[int, ...]:
    """A shape that a package's rule gave. Raises `GTError` unless it is a list of sizes."""
    if not isinstance(shape, (list, tuple)) or any(type(size) is not int or size < 0 for size in shape):
        raise GTError(f"{op}: its package's rule of shape gives {shape!r}, which is no list of sizes")
    return tuple(shape)
