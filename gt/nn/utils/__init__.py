"""Clipping, vectors of parameters, norms of weights and fused layers, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn import fuse_batchnorm, grad_clipping
from gt.client.nn.fuse_batchnorm import *  # noqa: F403
from gt.client.nn.grad_clipping import *  # noqa: F403  # all of its public names
from gt.client.nn.weight_norm import hooked_spectral_norm as spectral_norm
from gt.client.nn.weight_norm import hooked_weight_norm as weight_norm
from gt.client.nn.weight_norm import remove_hooked_norm as remove_spectral_norm
from gt.client.nn.weight_norm import remove_hooked_norm as remove_weight_norm

from . import fusion as fusion
from . import parametrizations as parametrizations
from . import parametrize as parametrize
from . import rnn as rnn

__all__ = [  # noqa: PLE0604  # a list of strings
    *grad_clipping.__all__,
    *fuse_batchnorm.__all__,
    "remove_spectral_norm",
    "remove_weight_norm",
    "spectral_norm",
    "weight_norm",
]
