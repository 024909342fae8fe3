"""Linear layers with int8 weights beside those of float32: memory, time of a call, and digits of the result.

    python benchmarks/quantized.py                # with the loops of `make native`, where they are built
    GT_NATIVE=0 python benchmarks/quantized.py    # without them

Each call is measured at a worker without a client: the kernels that a layer consists of, one thread, alternating, the least
CPU time of several rounds, with freed memory kept as a worker keeps it. Digits are those of a layer's whole result, from an
in-memory session, beside float64. With PyTorch installed, its `quantize_dynamic` is beside them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import gt
from gt import nn
from gt.ir.dtypes import as_dtype
from gt.ir.infer import infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.device.heap import keep_freed_arrays
from gt.worker.kernels.matmul import int8_loops
from gt.worker.op_table.op_table import KERNELS

ROUNDS = 15
SIZES = ((1024, 1024), (4096, 1024), (4096, 4096))
BATCHES = (1, 64)


def kernel_of(op: str, *operands: Any) -> Kernel:
    """The kernel of an instruction on one worker."""
    specs = tuple(spec(as_dtype(x.dtype), x.shape) for x in operands)
    (result,) = infer(op, specs, {})
    return KERNELS[op](KernelCall(np, op, {}, specs, result, result.shape, tuple((0, size) for size in result.shape)))


def measured(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of CPU time of each call, the least of some rounds in which all take turns."""
    least = dict.fromkeys(calls, math.inf)
    for round_ in range(ROUNDS + 1):
        for name, call in calls.items():
            before, count = time.process_time(), 0
            while (spent := time.process_time() - before) < 0.02:
                call()
                count += 1
            if round_:  # the first finds caches empty
                least[name] = min(least[name], spent / count * 1000)
    return least


def calls_of(n: int, k: int, m: int) -> dict[str, Callable[[], object]]:
    """The product of each layer on m rows, with what it computes beside."""
    source = np.random.default_rng(0)
    x = source.standard_normal((m, k), np.float32)
    w = source.standard_normal((n, k), np.float32)
    q, scale = source.integers(-127, 128, (n, k), np.int8), source.random(n, np.float32)
    wide, weight_only = kernel_of("matmul", x, w.T), kernel_of("linear_int8", x, q)
    exact = kernel_of("matmul_int8", q[:m], q)

    def dynamic() -> object:
        steps = np.abs(x).max(1, keepdims=True) / np.float32(127)
        return exact(np.round(x / steps).astype(np.int8), q).astype(np.float32) * steps * scale

    return {"float32": lambda: wide(x, w.T), "weight-only": lambda: weight_only(x, q) * scale, "dynamic": dynamic}


def digits(found: Any, exact: Any) -> float:
    """Digits that are right: of the root mean square error, relative to that of the result."""
    return -math.log10(float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))))


def accuracies(n: int, k: int) -> dict[str, float]:
    """Digits of each layer's result on 64 rows of a standard normal distribution, with the weights that layers begin with."""
    linear, x = nn.Linear(k, n), np.random.default_rng(1).standard_normal((64, k)).astype(np.float32)
    weight, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    with gt.no_grad():
        made = {
            name: gt.quantize(linear, dynamic="anyway" if name == "dynamic" else False)
            for name in ("weight-only", "dynamic")
        }
        found = {name: digits(layer(gt.tensor(x)).numpy(), exact) for name, layer in made.items()}
    try:
        import torch
    except ImportError:
        return found
    theirs = torch.nn.Linear(k, n)
    theirs.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(theirs), {torch.nn.Linear}, torch.qint8)
        found["PyTorch, dynamic"] = digits(layer(torch.tensor(x)).numpy(), exact)
    return found


def main() -> None:
    keep_freed_arrays()
    gt.connect("inproc", workers=1)
    print(f"int8 loops: {'not there' if int8_loops is None else 'there'}")
    for n, k in SIZES:
        print(f"weight {n} x {k}: memory {(n * k + 4 * n) / (4 * n * k):.3f} of float32; digits", end=" ")
        print(", ".join(f"{name} {value:.2f}" for name, value in accuracies(n, k).items()))
        for m in BATCHES:
            times = measured(calls_of(n, k, m))
            shown = (f"{name} {time:.3f} ms ({time / times['float32']:.2f})" for name, time in times.items())
            print(f"  batch {m}: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
