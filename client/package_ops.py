"""Calls of ops that packages bring: `gt.ops.<package>.<op>`, with their arguments, their gradients, and who has them.

The first call of an op in a session asks the service which packages its processes have, so that an op that the dispatcher or a
worker lacks is refused in the user's line.
"""

from __future__ import annotations

import inspect
from typing import Any, Final
from weakref import WeakKeyDictionary

from gt.client.session import sessions
from gt.client.session.session import Session
from gt.client.tensor import emission
from gt.client.tensor.broadcasting import unbroadcast
from gt.client.tensor.operands import convert, tensor_of
from gt.client.tensor.tape import GradientRule, TapeNode
from gt.client.tensor.tensor import Tensor
from gt.errors import AxisError, DTypeError, GradientError, OpUnavailable
from gt.ir.dtypes import DType, as_dtype, promote, scalar_kind
from gt.op_packages.definition import NoGradient, PackageOp
from gt.op_packages.loading import is_switched_off, load_packages
from gt.op_packages.offers import first_lacking, read_offer
from gt.op_packages.registry import PACKAGES, OpPackage, title_of

_found: Final[WeakKeyDictionary[Session, set[str]]] = WeakKeyDictionary()
"""The ops that all processes of a session's service have, as far as they were looked for."""
_NUMBERS: Final[dict[str, type[Any]]] = {"b": bool, "i": int, "f": float, "c": complex}


class GradientCall:
    """What the gradient rule of an op of a package sees of a call: `call["x"]` is an operand, a number or an attribute."""

    def __init__(self, op: PackageOp, node: TapeNode) -> None:
        self._op = op
        self._node = node

    def __getitem__(self, name: str) -> Any:
        """An operand (a tensor), number or attribute. Raises `GradientError` for an operand that the op does not say it reads."""
        places = (*self._op.operands, *self._op.numbers)
        if name not in places:
            return self._node.attribute(name)
        if name in self._op.operands and self._op.gradient_reads not in ("operands", "both"):
            raise GradientError(
                f"{self._op.name}: its gradient reads {name}: declare gradient_reads='operands' or 'both'"
            )
        return self._node.operand(places.index(name))

    @property
    def result(self) -> Tensor:
        """The result of the call. Raises `GradientError` if the op does not say that its gradient reads it."""
        if self._op.gradient_reads not in ("result", "both"):
            raise GradientError(
                f"{self._op.name}: its gradient reads the result: declare gradient_reads='result' or 'both'"
            )
        return self._node.result()

    def needs(self, name: str) -> bool:
        """Whether the gradient of this operand is wanted."""
        return self._node.wants[self._op.operands.index(name)]


def gradient_rule(title: str, op: PackageOp) -> GradientRule | None:
    """The rule of an op of a package, as the tape has it; None for one through which nothing flows."""
    if isinstance(op.gradient, NoGradient):
        return None
    declared, count = op.gradient, len(op.operands)
    read = "".join(map(str, range(count))) if op.gradient_reads in ("operands", "both") else ""
    read += "o" if op.gradient_reads in ("result", "both") else ""
    if declared is None:
        read = ""

    def rule(node: TapeNode, g: Tensor) -> tuple[Tensor | None, ...]:
        if declared is None:
            raise GradientError(f"{title} ({node.signature.tag.site}) has no gradient: .detach() its operands")
        given = declared(GradientCall(op, node), g)
        parts = (given,) if isinstance(given, Tensor) else given
        if not isinstance(parts, (tuple, list)) or len(parts) != count:
            raise GradientError(f"{title}: its package's gradient returns {count} tensors or None, not {given!r}")
        return (*(_fitted(title, op, node, at, part) for at, part in enumerate(parts)), *(None,) * len(op.numbers))

    return GradientRule((read,) * count, rule)


def _fitted(title: str, op: PackageOp, node: TapeNode, at: int, part: Any) -> Tensor | None:
    """The gradient of an operand, in that one's shape; None where none is wanted."""
    if not node.wants[at]:
        return None
    shape = node.shape(at)
    if not isinstance(part, Tensor):
        raise GradientError(f"{title}: its package's gradient gives none for {op.operands[at]}, which requires one")
    fits = part.ndim >= len(shape) and all(
        have == want or want == 1 for have, want in zip(part.shape[part.ndim - len(shape) :], shape, strict=True)
    )
    if not fits:
        raise GradientError(f"{title}: its package's gradient of {op.operands[at]} has shape {part.shape}, not {shape}")
    return unbroadcast(part, shape)


class OpFunction:
    """One op of a package, to be called: `gt.ops.softops.softclamp(x, limit=2.0)`."""

    def __init__(self, package: OpPackage, op: PackageOp) -> None:
        self.package = package
        self.op = op
        self.title = title_of(package.name, op)
        self.__name__ = self.__qualname__ = op.name
        self.__module__ = f"gt.ops.{package.name}"
        self.__doc__ = op.doc
        tensors = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in op.operands]
        rest = {**op.numbers, **{name: default for name, (_, default) in op.attributes.items()}}
        self.__signature__ = inspect.Signature(
            [
                *tensors,
                *(
                    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
                    for name, default in rest.items()
                ),
            ]
        )
        rule = gradient_rule(self.title, op)
        if rule is not None:
            emission.GRADIENT_RULES[self.title] = rule

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        """Emit one instruction and return its result. Raises `TypeError` for arguments that the op does not have, `ShapeError`
        and `DTypeError` for operands that do not fit, and `OpUnavailable` where the service lacks the op."""
        bound = self._bound(args, options)
        op, values = self.op, list(bound)
        count = len(op.operands)
        operands = self._tensors(values[:count])
        numbers = [
            self._number(name, kind, value)
            for name, kind, value in zip(op.numbers, op.kinds, values[count : count + len(op.numbers)], strict=True)
        ]
        attributes = [
            self._attribute(name, kind, value, operands[0].ndim)
            for (name, (kind, _)), value in zip(op.attributes.items(), values[count + len(op.numbers) :], strict=True)
        ]
        self._require()
        return emission.emit(self.title, (*operands, *numbers), *attributes)

    def _bound(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        try:
            found = self.__signature__.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"gt.ops.{self.package.name}.{self.op.name}{self.__signature__}: {error}") from None
        found.apply_defaults()
        return tuple(found.arguments.values())

    def _tensors(self, values: list[Any]) -> list[Tensor]:
        """The operands as tensors, those of one kind in one dtype."""
        found = [tensor_of(self.title, value) for value in values]
        dtypes: dict[str, DType] = {}
        for domain, each in zip(self.op.domains, found, strict=True):
            own = each.dtype
            dtypes[domain] = promote(dtypes[domain], own) if domain in dtypes else own
        return [convert(self.title, each, dtypes[domain]) for domain, each in zip(self.op.domains, found, strict=True)]

    def _number(self, name: str, kind: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            raise DTypeError(f"{self.title}: {name} is a Python number, which travels with each call: pass x.item()")
        given = scalar_kind(value)
        if "bifc".index(given) > "bifc".index(kind):
            raise DTypeError(f"{self.title}: {name} is a number of type {_NUMBERS[kind].__name__}, not {value!r}")
        return _NUMBERS[kind](value)

    def _attribute(self, name: str, kind: str, value: Any, ndim: int) -> Any:
        """An attribute as instructions have it: axes are counted from the front, of the first operand."""
        if kind == "dtype":
            return as_dtype(value)
        if kind == "axis":
            return self._axis(name, value, ndim)
        if kind == "axes":
            listed = (value,) if isinstance(value, int) else tuple(value)
            return tuple(sorted({self._axis(name, each, ndim) for each in listed}))
        if kind in ("shape", "sizes", "steps"):
            return (value,) if isinstance(value, int) else tuple(value)
        return value

    def _axis(self, name: str, value: Any, ndim: int) -> int:
        if type(value) is not int or not -ndim <= value < max(ndim, 1):
            raise AxisError(f"{self.title}: {name} is an axis of {ndim} dimensions, not {value!r}")
        return value % ndim if ndim else 0

    def _require(self) -> None:
        """Raise `OpUnavailable` unless all processes of the service have this op."""
        session = sessions.current()
        found = _found.get(session)
        if found is None:
            found = _found[session] = set()
        if self.title in found:
            return
        answer = session.packaged_ops()
        offers = [("the dispatcher", read_offer(answer.get("dispatcher")))]
        offers += [(str(where), read_offer(offer)) for where, offer in answer.get("workers", ())]
        lacking = first_lacking([self.title], offers)
        if lacking:
            raise OpUnavailable(lacking[self.title])
        found.add(self.title)

    def __repr__(self) -> str:
        return f"<op {self.title} of {self.package.said}>"


class OpNamespace:
    """The ops of one package: `gt.ops.softops`."""

    def __init__(self, package: OpPackage) -> None:
        self.__doc__ = f"The ops of {package.said}."
        self._package = package
        for op in package.ops.values():
            setattr(self, op.name, OpFunction(package, op))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(self._package.ops))
        raise AttributeError(f"gt.ops.{self._package.name} has no op {name!r}: {self._package.said} brings {known}")

    def __repr__(self) -> str:
        return f"<ops of {self._package.said}>"


_namespaces: Final[dict[str, OpNamespace]] = {}


def namespace(name: str) -> OpNamespace:
    """The ops of a package by its name. Raises `AttributeError` saying why there is none, or that it is not installed."""
    problems = load_packages()
    package = PACKAGES.get(name)
    if package is None:
        raise AttributeError(f"gt.ops has no package {name!r}: {problems.get(name) or _how_to_get(name)}")
    found = _namespaces.get(name)
    if found is None or found._package is not package:
        found = _namespaces[name] = OpNamespace(package)
    return found


def _how_to_get(name: str) -> str:
    if name in ("aten", "prims"):
        return "PyTorch's own ops are functions of gt and gt.nn.functional"
    if is_switched_off():
        return "GT_OPS=0 turns packages of ops off"
    known = ", ".join(sorted(PACKAGES))
    there = f"; there are {known}" if known else ""
    return f"install the distribution that has it, here and for the dispatcher and each worker{there}"


def package_names() -> list[str]:
    """The names of all packages of ops that are here."""
    load_packages()
    return sorted(PACKAGES)
