"""Data sets, samplers and loaders, under the name by which programs import them."""

from __future__ import annotations

from gt.client.data.dataloader import *  # noqa: F403
from gt.client.data.dataloader import __all__ as _loaders
from gt.client.data.datasets import *  # noqa: F403  # all of its public names
from gt.client.data.datasets import __all__ as _sets
from gt.client.data.prefetch import *  # noqa: F403
from gt.client.data.prefetch import __all__ as _feeders

__all__ = [*_sets, *_loaders, *_feeders]  # noqa: PLE0604  # they are lists of strings
