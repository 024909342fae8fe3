"""Results on the workers, and values between the two libraries."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import gt

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["Array", "dtype_of", "on_workers"]


class Array:
    """A result of a jitted function, on the workers. It may be an argument of the next call, which then moves nothing; NumPy and
    JAX fetch it where they are given it, and wait."""

    __slots__ = ("__weakref__", "held")

    def __init__(self, held: Tensor) -> None:
        self.held = held
        """The tensor of GT."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.held.shape)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """NumPy's dtype of it."""
        return _numpy_dtype(self.held.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        fetched = np.asarray(self.held.numpy())
        return fetched if dtype is None else fetched.astype(dtype)

    def __jax_array__(self) -> Any:
        return jnp.asarray(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __repr__(self) -> str:
        return f"gt.jax.Array({self.held!r})"


@functools.cache
def _numpy_dtype(dtype: gt.DType) -> Any:
    return np.dtype(getattr(jnp, dtype.name.removeprefix("gt.")))


def dtype_of(dtype: Any) -> gt.DType:
    """GT's dtype of one of JAX's."""
    name = np.dtype(dtype).name
    found = getattr(gt, "bool_" if name == "bool" else name, None)
    if not isinstance(found, gt.DType):
        raise NotImplementedError(f"gt.jax has no dtype {name}")
    return found


def on_workers(x: Any) -> Tensor:
    """A copy on the workers of an array of NumPy or JAX, or of a number."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    values = np.asarray(x)
    return gt.tensor(values, dtype=dtype_of(values.dtype))
