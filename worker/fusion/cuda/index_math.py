"""Index arithmetic in CUDA C++: where an element lies along dimensions, of which `n0`, `n1`, … are the sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def product(axes: Sequence[int]) -> str:
    return " * ".join(f"n{axis}" for axis in axes) or "1"


def places(axes: Sequence[int], name: str) -> str:
    """The offset of a place among dimensions that lie row by row, by Horner's rule."""
    text = ""
    for axis in axes:
        text = f"({text}) * n{axis} + {name}{axis}" if text else f"{name}{axis}"
    return text


def divided(whole: str, axes: Sequence[int], wanted: set[int]) -> Iterator[str]:
    """The places along those dimensions that are wanted, from the place among all."""
    rest = whole
    for axis in reversed(axes):
        if axis in wanted:
            yield f"const place_t d{axis} = {rest}{f' % n{axis}' if axis != axes[0] else ''};"
        if any(other < axis for other in wanted):
            yield f"const place_t e{axis} = {rest} / n{axis};"
            rest = f"e{axis}"
