"""The client: tensors, autograd, modules, optimizers, and the stream of instructions that they emit.

Packages, lowest first: `segment`, `session`, `tensor`, `ops`, `ops.linalg`, `functional`, `autograd`, `torch_compat`,
`tensor_api`, `array_api`, `nn`, `optim`, `data`, `io`, `distributions`, `compile`. Each imports only what is below it, and the
shared packages of `gt`. `composition` joins them: whichever module a program asks for, tensors have their methods.
"""

from __future__ import annotations

from . import composition as composition
