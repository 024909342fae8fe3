"""JAX as a front end: `gt.jax.jit` runs a function of JAX on GT's workers, as one program.

JAX traces the function into equations of its primitives, transformations such as `grad` and `vmap` included; each
equation is computed with GT. Needs JAX 0.5 or newer. It is part of the public face, and asks GT for what any program may ask.
"""

from __future__ import annotations

from .jit import Jitted, jit
from .values import Array

__all__ = ["Array", "Jitted", "jit"]
