"""Data sets, samplers and loaders, under the name by which programs import them."""

from __future__ import annotations

from gt.client.datasets import *  # noqa: F403  # all of its public names
from gt.client.datasets import __all__ as _sets
from gt.client.loading import *  # noqa: F403
from gt.client.loading import __all__ as _loaders

__all__ = [*_sets, *_loaders]  # noqa: PLE0604  # both are lists of strings
