"""Averages of weights, under the name by which programs import them."""

from __future__ import annotations

from gt.client.optim.swa import *  # noqa: F403  # all of its public names
from gt.client.optim.swa import __all__ as __all__  # noqa: PLC0414  # and their list
