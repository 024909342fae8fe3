"""In-place methods as functions: `gt.relu_(x)` is `x.relu_()`. Which there are is declared in `gt.public_api.function_table`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.operands import tensor_of
from gt.client.tensor.tensor import Tensor
from gt.public_api.name_table import public_names


def _calling(name: str) -> Callable[..., Tensor]:
    """The function that calls its first argument's method of this name."""

    def function(input: Tensor, *args: Any, **options: Any) -> Tensor:
        written: Tensor = getattr(tensor_of(name, input), name)(*args, **options)
        return written

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    function.__wrapped__ = getattr(Tensor, name)  # type: ignore[attr-defined]  # whose signature it has
    return function


globals().update({name: _calling(name) for name, module, _ in public_names() if module == __name__})
