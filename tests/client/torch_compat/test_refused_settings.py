"""Modules and optimizers refuse what PyTorch's own databases of them say is an error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import gt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's databases need expecttest: pip install expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

pytestmark = pytest.mark.usefixtures("session")

MODULES = {each.module_cls.__name__: each for each in module_db if each.module_error_inputs_func is not None}
OPTIMIZERS = {each.optim_cls.__name__: each for each in optim_db if hasattr(gt.optim, each.optim_cls.__name__)}


def given(value: Any) -> Any:
    """An argument as GT takes it."""
    if isinstance(value, torch.nn.Parameter):
        return gt.nn.Parameter(gt.from_torch(value.detach()))
    if isinstance(value, torch.Tensor):
        return gt.from_torch(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(given, value))
    if isinstance(value, dict):
        return {key: given(each) for key, each in value.items()}
    if isinstance(value, torch.dtype):
        return getattr(gt, str(value).removeprefix("torch."))
    return value


def accepts(name: str, case: Any) -> bool:
    """Whether GT makes the module and, where the call is the error, what it is called with."""
    sample, made = case.module_error_input, case.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR
    constructor, forward = sample.constructor_input, sample.forward_input
    try:
        module = getattr(gt.nn, name)(*given(list(constructor.args)), **given(constructor.kwargs))
        out = None if made else module(*given(list(forward.args)), **given(forward.kwargs))
        for each in out if isinstance(out, tuple) else [out]:
            if isinstance(each, gt.Tensor):
                each.numpy()
    except (gt.GTError, RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


@pytest.mark.parametrize("name", [name for name in MODULES if hasattr(gt.nn, name)])
def test_modules_refuse_what_pytorchs_refuse(name: str) -> None:
    info = MODULES[name]
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": True}
    cases = info.module_error_inputs_func(info, **options)
    accepted = [case.module_error_input.constructor_input for case in cases if accepts(name, case)]
    assert accepted == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_refuse_what_pytorchs_refuse(name: str) -> None:
    """What is only warned of there, a parameter twice in one group, is an error here."""
    for case in OPTIMIZERS[name].optim_error_inputs_func("cpu", torch.float32):
        sample = case.optimizer_error_input
        if case.error_on is not OptimizerErrorEnum.CONSTRUCTION_ERROR or not isinstance(sample.params, list):
            continue
        if "duplicate" in sample.desc or "with/without names" in sample.desc:
            continue  # below, as they are told by which object a parameter is
        with pytest.raises((gt.GTError, ValueError, TypeError, RuntimeError)):
            getattr(gt.optim, name)(given(sample.params), **sample.kwargs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_is_in_one_group(name: str) -> None:
    weight = gt.nn.Parameter(gt.ones(2, 2))
    other = gt.nn.Parameter(gt.ones(2, 2))
    make = getattr(gt.optim, name)
    with pytest.raises(ValueError, match="twice in one"):
        make([weight, weight])
    if name == "LBFGS":
        return
    optimizer = make([("weight", weight)])
    for group, says in (
        ({"params": [("again", weight)]}, "in two groups"),
        ({"params": [other]}, "names in all groups"),
        ([other], "is a dict"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            optimizer.add_param_group(group)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
