"""Every module that PyTorch's own tests know and GT has: constructor, state, values and gradients on the inputs that
PyTorch's generator draws in float64 (`torch.testing._internal.common_modules.module_db`), inputs that nobody here chose."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from effort import cases

import gt

try:
    import torch
    from torch.testing._internal.common_modules import module_db
except ImportError:
    pytest.skip("PyTorch's samples are compared with, and it is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("shared")

ABSENT = {
    f"LazyConv{kind}{count}d": "PyTorch's has no values before its first input: test_lazy.py compares it"
    for kind in ("", "Transpose")
    for count in (1, 2, 3)
}
"""Modules of PyTorch's list that are not compared here, and why."""

MOST = cases(6)
"""Samples of one module that run; PyTorch draws up to some hundreds of an attention."""

INFOS = {info.name.removeprefix("nn."): info for info in module_db}
COVERED = sorted(name for name in INFOS if hasattr(gt.nn, name) and name not in ABSENT)


def given(value: Any) -> Any:
    """What PyTorch's sample holds, as GT takes it."""
    if isinstance(value, torch.Tensor):
        out = gt.tensor(value.detach().numpy())
        return out.requires_grad_() if value.requires_grad else out
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return type(value)([given(each) for each in value])
    if isinstance(value, torch.nn.Module):
        return twin(value)
    if callable(value) and hasattr(torch.nn.functional, getattr(value, "__name__", "")):
        return getattr(gt.nn.functional, value.__name__)
    return value


def twin(layer: Any) -> gt.nn.Module:
    """The one module that PyTorch's samples hand to another: an encoder's layer, with the settings of theirs."""
    assert type(layer) is torch.nn.TransformerEncoderLayer
    attention, activation = layer.self_attn, layer.activation.__name__
    return gt.nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        layer.linear1.out_features,
        layer.dropout.p,
        activation,
        layer.norm1.eps,
        attention.batch_first,
        layer.norm_first,
        layer.linear1.bias is not None,
    )


def tensors(value: Any) -> list[Any]:
    """All floating-point tensors in what a module returned, in order."""
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors(each)]
    return [value] if hasattr(value, "dtype") and value.is_floating_point() else []


def agree(got: Any, want: Any, what: str) -> None:
    assert tuple(got.shape) == tuple(want.shape), what
    expected = want.detach().numpy()
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-8, atol=1e-9 * scale, err_msg=what)


def samples(name: str, training: bool) -> list[Any]:
    info = INFOS[name]
    torch.manual_seed(len(name) + training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
    step = max(1, len(drawn) // MOST)
    return drawn[::step][:MOST]


def run(name: str, sample: Any, training: bool) -> None:
    info = INFOS[name]
    made = sample.constructor_input
    theirs = info.module_cls(*made.args, **made.kwargs)
    ours = getattr(gt.nn, name)(
        *map(given, made.args), **{k: given(v) for k, v in made.kwargs.items() if k != "device"}
    )
    theirs.double().train(training)
    ours.double().train(training)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    if sample.forward_input is None:
        return
    args, options = sample.forward_input.args, sample.forward_input.kwargs
    mine_args, mine_options = given(args), {key: given(value) for key, value in options.items()}
    out, expected = ours(*mine_args, **mine_options), theirs(*args, **options)
    pairs = list(zip(tensors(out), tensors(expected), strict=True))
    for got, want in pairs:
        agree(got, want, "values")
    if not all(want.requires_grad for _, want in pairs):
        return
    weights = [torch.randn(want.shape, dtype=want.dtype) for _, want in pairs]
    sum((want * weight).sum() for (_, want), weight in zip(pairs, weights, strict=True)).backward()
    total: Any = 0.0
    for (got, _), weight in zip(pairs, weights, strict=True):
        total = total + (got * gt.tensor(weight.numpy())).sum()
    total.backward()
    for (key, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if q.grad is not None:
            agree(p.grad, q.grad, f"gradient of {key}")
    for a, b in zip(tensors([*mine_args, *mine_options.values()]), tensors([*args, *options.values()]), strict=True):
        if b.grad is not None:
            agree(a.grad, b.grad, "gradient of an input")
    for key, value in theirs.state_dict().items():
        agree(ours.state_dict()[key], value, f"state {key} afterwards")


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.filterwarnings("ignore")
def test_a_module_agrees_with_pytorch(name: str) -> None:
    """Constructor, names of the state, values, gradients and state afterwards, in training and outside of it."""
    modes = (True, False) if INFOS[name].train_and_eval_differ else (True,)
    ran = 0
    for training in modes:
        for sample in samples(name, training):
            described = f"{sample.desc or sample.constructor_input.kwargs}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    run(name, sample, training)
                except AssertionError as error:
                    raise AssertionError(f"{name} {described} training={training}: {error}") from error
            ran += 1
    assert ran


def test_what_is_not_covered_is_listed() -> None:
    """A module of PyTorch's list is in GT, or among those that are named with a reason."""
    missing = {name for name in set(INFOS) - set(COVERED) if not re.search(r"Conv|Pool|Lazy", name)}
    assert missing == set()
