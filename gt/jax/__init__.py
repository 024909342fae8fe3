"""JAX as a front end: `gt.jax.jit` runs a function of JAX on GT's workers, as one program.

JAX traces the function into equations of its primitives, transformations such as `grad` and `vmap` included; each
equation is computed with GT. Needs JAX 0.5 or newer. It is part of the public face, and asks GT for what any program may ask.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401  # to say in one sentence where it is missing
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gt.jax needs JAX 0.5 or newer, which is not installed: pip install 'gt-tensor[jax]'", name="jax"
    ) from None

from .jit import Jitted, jit
from .values import Array

__all__ = ["Array", "Jitted", "jit"]
