"""Normalisation made part of the layer before it, under the name by which programs import it."""

from __future__ import annotations

from gt.client.nn.fuse_batchnorm import *  # noqa: F403  # all of its public names
from gt.client.nn.fuse_batchnorm import __all__ as __all__  # noqa: PLC0414  # and their list
