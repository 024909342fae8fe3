"""The client: tensors, autograd, modules, optimizers, and the stream of instructions that they emit.

Its modules need each other at call time, and refer to each other as modules. `tensor` is imported first: whichever
module a program asks for, they load in the one order in which that works.
"""

from __future__ import annotations

from . import tensor as tensor
