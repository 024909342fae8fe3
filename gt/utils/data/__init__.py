"""Data sets, samplers and loaders, under PyTorch's path: those of `gt.data`."""

from __future__ import annotations

from gt.data import *  # noqa: F403  # all of its public names
from gt.data import __all__ as __all__  # and their list

from . import dataloader as dataloader
from . import dataset as dataset
from . import sampler as sampler
