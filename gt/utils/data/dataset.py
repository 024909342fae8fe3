"""Data sets, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.data.datasets import *  # noqa: F403  # all of its public names
from gt.client.data.datasets import __all__ as __all__  # noqa: PLC0414  # and their list
