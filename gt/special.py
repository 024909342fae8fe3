"""Special functions, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.ops.special import *  # noqa: F403  # all of its public names
from gt.client.ops.special import __all__
from gt.client.tensor_api.out_argument import all_filling

globals().update(all_filling(__name__, {name: globals()[name] for name in __all__}))  # out=, which PyTorch's take, too
