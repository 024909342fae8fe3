"""Compares small models of Hugging Face with PyTorch on the CPU: results, gradients, three steps of AdamW."""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import gt
import gt.torch

from .architectures import LeftOut, loss_of, model_of, names, results_of

TOLERANCE: Final = 2e-3
"""The largest difference, in parts of the largest value of the tensor, or of the whole model where that has hardly any."""
MOST_ROUNDING: Final = 2e-2
"""What is further apart is not taken for rounding, whatever PyTorch's results in float64 are."""
STEPS: Final = 3


class Outcome(NamedTuple):
    """What three steps gave."""

    results: list[Any]
    gradients: dict[str, Any]
    parameters: dict[str, Any]


def trained(model: Any, call: Callable[..., Any], arguments: dict[str, Any]) -> Outcome:
    """Train for three steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    results, gradients = [], {}
    for number in range(STEPS):
        out = call(**arguments)
        loss = loss_of(out)
        optimizer.zero_grad()
        loss.backward()
        if not number:
            results = [each.detach().cpu() for each in results_of(out)]
            gradients = {
                name: each.grad.detach().cpu().clone()
                for name, each in model.named_parameters()
                if each.grad is not None
            }
        optimizer.step()
    return Outcome(results, gradients, {name: each.detach().cpu() for name, each in model.named_parameters()})


def largest(tensors: Any) -> float:
    """The largest absolute value."""
    return max((float(each.abs().max()) for each in tensors if each.numel()), default=0.0)


def difference(found: Outcome, expected: Outcome) -> tuple[float, float, float]:
    """Of results, gradients and parameters, the largest difference in parts of their scale. Parameters count where their gradient
    was more than rounding: AdamW takes no more than the sign of it."""
    if len(found.results) != len(expected.results):
        raise AssertionError(f"{len(found.results)} results for {len(expected.results)}")
    of_results = max(
        (apart(a, b, largest([b])) for a, b in zip(found.results, expected.results, strict=True)), default=0.0
    )
    scale = largest(expected.gradients.values())
    of_gradients = of_parameters = 0.0
    for name, gradient in expected.gradients.items():
        of_gradients = max(of_gradients, apart(found.gradients[name], gradient, max(largest([gradient]), 1e-3 * scale)))
        told = gradient.abs() > 1e-4 * scale
        before = expected.parameters[name]
        of_parameters = max(
            of_parameters, apart(found.parameters[name][told], before[told], max(largest([before]), 1e-2))
        )
    return of_results, of_gradients, of_parameters


def apart(found: Any, expected: Any, scale: float) -> float:
    """The largest difference, in parts of a scale."""
    if found.shape != expected.shape:
        raise AssertionError(f"shape {tuple(found.shape)} for {tuple(expected.shape)}")
    return float((found.float() - expected.float()).abs().max()) / max(scale, 1e-12) if expected.numel() else 0.0


def tried(name: str, way: str, model: Any, arguments: dict[str, Any], expected: Outcome) -> str:
    """How an architecture does in one way: "same"; "rounding", if PyTorch is not much nearer to float64; or what is different."""
    mine, given = copy.deepcopy(model), arguments
    if way == "device":
        mine.to("gtx")
        given = {key: each.to("gtx") if isinstance(each, torch.Tensor) else each for key, each in arguments.items()}
    call: Any = mine
    if way == "backend":
        torch._dynamo.reset()
        call = torch.compile(mine, backend=gt.torch.backend)
    try:
        found = trained(mine, call, given)
        apart = difference(found, expected)
    except Exception as error:  # noqa: BLE001 — the next architecture is still tried
        return f"{type(error).__name__}: {str(error)[:160]}"
    text = "results {:.0e}, gradients {:.0e}, parameters {:.0e}".format(*apart)
    if max(apart) < TOLERANCE:
        return f"same: {text}"
    here, there = rounding(model, arguments, found, expected)
    word = "rounding" if here < 2 * there < MOST_ROUNDING else "different"
    return f"{word}: {text}; from float64 {here:.0e}, PyTorch {there:.0e}"


def rounding(model: Any, arguments: dict[str, Any], found: Outcome, expected: Outcome) -> tuple[float, float]:
    """How far results are from PyTorch's in float64: those of GT, and those of PyTorch in float32. Both are infinite where the
    model does not compute in float64."""
    wide = copy.deepcopy(model).double()
    given = {
        key: each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for key, each in arguments.items()
    }
    try:
        exact = trained(wide, wide, given)
        return max(difference(found, exact)), max(difference(expected, exact))
    except Exception:  # noqa: BLE001 — whatever it is that such a model does
        return math.inf, math.inf


def main() -> int:
    """Try architectures and say how each does; the status is 1 if one is not the same."""
    parser = argparse.ArgumentParser(description="Compare Hugging Face's architectures with PyTorch on the CPU.")
    parser.add_argument("names", nargs="*", help="architectures; all if there are none")
    parser.add_argument("--ways", default="device,backend", help="a comma-separated choice of: %(default)s")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    gt.connect("inproc", workers=1)
    counts: Counter[str] = Counter()
    for name in options.names or names():
        try:
            model, arguments = model_of(name)
            reference = copy.deepcopy(model)
            expected = trained(reference, reference, arguments)
        except LeftOut as error:
            counts["left out"] += 1
            print(f"{name:32} left out: {error}", flush=True)
            continue
        except Exception as error:  # noqa: BLE001 — it does not train with these arguments on the CPU either
            counts["left out"] += 1
            print(f"{name:32} left out: {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        counts["architectures"] += 1
        for way in options.ways.split(","):
            said = tried(name, way, model, arguments, expected)
            counts[f"{way}: the same" if said.startswith(("same", "rounding")) else f"{way}: not"] += 1
            print(f"{name:32} {way:8} {said}", flush=True)
    print(", ".join(f"{what} {count}" for what, count in counts.items()))
    return int(any(what.endswith(": not") for what in counts))


if __name__ == "__main__":
    sys.exit(main())
