"""Reductions of what a mask keeps, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.functional.masked import *  # noqa: F403  # all of its public names
from gt.client.functional.masked import __all__ as __all__  # noqa: PLC0414  # and their list
