"""Optimizers, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.optim import *  # noqa: F403  # all of its public names
from gt.client.optim import __all__ as __all__

from . import swa_utils as swa_utils
