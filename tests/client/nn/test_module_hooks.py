"""Hooks of modules, each in GT and in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from beside_torch import in_both, leaf, linear, refused

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


@both
def forward_hooks_of_modules(lib: Any) -> Any:
    layer = linear(lib)
    log = []
    layer.register_forward_pre_hook(lambda m, args: log.append("pre") or (args[0] * 2,))
    layer.register_forward_pre_hook(lambda m, args: log.append("first"), prepend=True)
    layer.register_forward_pre_hook(lambda m, args, kw: (args, {**kw}), with_kwargs=True)
    layer.register_forward_hook(lambda m, args, out: log.append("after") or out + 1)
    handle = layer.register_forward_hook(lambda m, args, kw, out: log.append(sorted(kw)), with_kwargs=True)
    out = layer(leaf(lib))
    handle.remove()
    return [out, layer(leaf(lib)), log]


@both
def forward_hooks_that_are_always_called(lib: Any) -> Any:
    log = []

    class Broken(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("broken")

    module = Broken()
    module.register_forward_hook(lambda m, args, out: log.append(out), always_call=True)
    module.register_forward_hook(lambda m, args, out: log.append("not"))
    try:
        module(leaf(lib))
    except KeyError:
        log.append("raised")
    return log


@both
def backward_hooks_of_modules(lib: Any) -> Any:
    layer = linear(lib)
    seen = []
    layer.register_full_backward_pre_hook(lambda m, out: (out[0] * 2,))
    handle = layer.register_full_backward_hook(lambda m, into, out: seen.append([m is layer, *into, *out]))
    layer.register_full_backward_hook(lambda m, into, out: (into[0] * 3,))
    x = leaf(lib)
    layer(x * 1).sum().backward()
    handle.remove()
    first = [x.grad.clone(), layer.weight.grad.clone()]
    with lib.no_grad():
        quiet = layer(x).requires_grad
    (g,) = lib.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    return [seen, first, quiet, g, *lib.autograd.grad(g.sum(), x)]


@both
def backward_hooks_of_several_results(lib: Any) -> Any:
    class Pair(lib.nn.Module):
        def forward(self, x: Any, factor: float, y: Any) -> Any:
            return x * factor, x * y

    module, seen = Pair(), []
    module.register_full_backward_hook(lambda m, into, out: seen.append([into[0], into[1], into[2], *out]))
    x, y = leaf(lib), leaf(lib, 1.0, 2.0, 3.0)
    a, b = module(x, 2.0, y.detach())
    (a + b * b).sum().backward()
    return [seen, x.grad]


@both
def backward_hooks_that_answer_wrongly(lib: Any) -> Any:
    layer = linear(lib)
    layer.register_full_backward_hook(lambda m, into, out: (into[0], into[0]))
    return refused(lambda: layer(leaf(lib)).sum().backward())
