"""Distributions of random numbers, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.distributions import *  # noqa: F403  # all of its public names
from gt.client.distributions import __all__ as __all__

from . import constraints as constraints
from . import kl as kl
from . import transforms as transforms
