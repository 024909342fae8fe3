"""Data sets, samplers and loaders, under PyTorch's path: those of `gt.data`."""

from __future__ import annotations

from gt.data import *  # noqa: F403  # all of its public names
from gt.data import __all__ as __all__  # noqa: PLC0414  # and their list
