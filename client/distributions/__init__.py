"""Distributions of random numbers: samples, densities, entropies and divergences. Names and formulas are PyTorch's."""

from __future__ import annotations

from . import constraints as constraints
from . import continuous, derived, discrete, distribution, gammas, kl, multivariate, transforms
from .continuous import *  # noqa: F403
from .derived import *  # noqa: F403
from .discrete import *  # noqa: F403
from .distribution import *  # noqa: F403
from .gammas import *  # noqa: F403
from .kl import *  # noqa: F403
from .multivariate import *  # noqa: F403
from .transforms import *  # noqa: F403

__all__ = [  # noqa: PLE0604  # lists of strings
    *continuous.__all__, *derived.__all__, *discrete.__all__, *distribution.__all__,
    *gammas.__all__, *kl.__all__, *multivariate.__all__, *transforms.__all__,
]  # fmt: skip
