"""Programs as data: straight lists of steps over numbered slots, run several times. Values are the interpreters' business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

SIGNALS: Final = ("a", "b", "c", "a/b", "b/c", "c/a", "d")
"""Signals that programs name; `d` has never a rule."""
DTYPES: Final = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "f2": "float16", "f2b": "bfloat16",
    "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip
"""Dtypes as programs write them, their kind first, and as GT does."""
LARGEST: Final = 12_000
"""Elements of the largest tensor."""


Shape = tuple[int, ...]


class Draws(Protocol):
    """Where choices come from: 0 is the simplest."""

    def below(self, count: int) -> int:
        """An integer from 0 up to but without `count`."""


class Varying(NamedTuple):
    """A number that changes from one repetition to the next: a run-time scalar."""

    base: Any
    by: Any

    def at(self, repetition: int) -> Any:
        """The number in a repetition."""
        return self.base + self.by * repetition


class Moving(NamedTuple):
    """A slice of fixed size at a start that moves from one repetition to the next."""

    size: int
    by: int
    room: int

    def at(self, repetition: int) -> slice:
        """The slice in a repetition."""
        start = self.by * repetition % (self.room + 1)
        return slice(start, start + self.size)


def at(value: Any, repetition: int) -> Any:
    """An argument of a step as it is in a repetition."""
    if isinstance(value, (Varying, Moving)):
        return value.at(repetition)
    return tuple(at(item, repetition) for item in value) if type(value) is tuple else value


@dataclass(frozen=True)
class Step:
    """One statement. `signal` is the path that it runs in, `backward` what that path's gradients are called."""

    op: str
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    arguments: dict[str, Any]
    signal: str | None = None
    backward: str | None = None
    no_grad: bool = False

    def __str__(self) -> str:
        given = [f"t{i}" for i in self.ins] + [f"{key}={value!r}" for key, value in self.arguments.items()]
        outs = ", ".join(f"t{i}" for i in self.outs)
        where = f"  # in {self.signal}" if self.signal else ""
        where += f", backward {self.backward}" if self.backward else ""
        where += "  # no_grad" if self.no_grad else ""
        return f"{outs}{' = ' if outs else ''}{self.op}({', '.join(given)}){where}"


@dataclass(frozen=True)
class Program:
    """`setup` once, then `body` `repeats` times. Slots of the setup are there in every repetition."""

    seed: int
    setup: tuple[Step, ...]
    body: tuple[Step, ...]
    repeats: int

    def __str__(self) -> str:
        lines = [f"manual_seed({self.seed})", *map(str, self.setup), f"repeat {self.repeats} times:"]
        return "\n".join([*lines, *(f"    {step}" for step in self.body)])
