"""The client's module of this name, under the name by which programs import it."""

from __future__ import annotations

from gt.client.distributions.transforms import *  # noqa: F403  # all of its public names
from gt.client.distributions.transforms import __all__ as __all__  # noqa: PLC0414  # and their list
