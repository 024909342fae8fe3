"""The functions that modules are made of, under the name by which programs import them."""

from __future__ import annotations

from gt.client.functional.functional import *  # noqa: F403  # all of its public names
from gt.client.functional.functional import __all__ as _names
from gt.client.nn.attention import multi_head_attention_forward
from gt.client.tensor_api.out_argument import all_filling

__all__ = [*_names, "multi_head_attention_forward"]  # noqa: PLE0604  # a list of strings

_FILLING = (
    "avg_pool2d", "avg_pool3d", "gelu", "hardshrink", "linear", "logsigmoid", "normalize", "softplus", "softshrink",
)  # fmt: skip
globals().update(all_filling(__name__, {name: globals()[name] for name in _FILLING}))  # out=, which PyTorch's take, too
