"""Learning-rate schedules, under the name by which programs import them."""

from __future__ import annotations

from gt.client.optim.lr_scheduler import *  # noqa: F403  # all of its public names
from gt.client.optim.lr_scheduler import __all__ as __all__  # noqa: PLC0414  # and their list
