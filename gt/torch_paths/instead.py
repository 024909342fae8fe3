"""What PyTorch has and GT has not on purpose, and what to do instead: errors say it where such a name is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from gt.errors import GTError

PROCESSES: Final = (
    "a GT program is one process, whatever the number of workers: remove what starts process groups, and bind a signal "
    "around the training step to `strategy: data_parallel` (or another strategy) in the config"
)

# fmt: off
INSTEAD: Final = {
    "export": "programs are not exported; `gt.save(model.state_dict(), path)` writes a safetensors file for other libraries",
    "library": "an op is declared by `gt.ops.Op` and installed as a package (docs/custom-ops.md); for a gradient of your own "
    "`gt.autograd.Function` is enough",
    "nested": "nested tensors are not supported; use `gt.nn.utils.rnn.pad_sequence` and a mask",
    "profiler": "use `with gt.profile('run.json'):` and `gt report run.json`",
    "quantization": "use `gt.quantize(model)`, or `gt.ao.quantization.quantize_dynamic`",
    "serialization": "`gt.load` runs no code from files, so there is nothing to allow or to set",
    "sparse": "sparse tensors are not supported; use dense ones, or gather and `scatter_add` over the list of indices",
    "sparse_coo_tensor": "sparse tensors are not supported; use dense ones, or gather and `scatter_add` over the list of indices",
    "sparse_csr_tensor": "sparse tensors are not supported; use dense ones, or gather and `scatter_add` over the list of indices",
}  # fmt: skip
# fmt: on
"""By name in `gt`."""


def refused(name: str, advice: str) -> Callable[..., NoReturn]:
    """A function of PyTorch's that can be imported and says, when it is called, what to do instead."""

    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise GTError(f"{name}: {advice}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Raises: {advice}."
    return refuse
