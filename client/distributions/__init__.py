"""Distributions of random numbers: samples, densities, entropies and divergences. Names and formulas are PyTorch's."""

from __future__ import annotations

from . import composite, continuous, discrete, distribution, gamma_family, kl, multivariate_normal, transforms
from . import constraints as constraints
from .composite import *  # noqa: F403
from .continuous import *  # noqa: F403
from .discrete import *  # noqa: F403
from .distribution import *  # noqa: F403
from .gamma_family import *  # noqa: F403
from .kl import *  # noqa: F403
from .multivariate_normal import *  # noqa: F403
from .transforms import *  # noqa: F403

__all__ = [  # noqa: PLE0604  # lists of strings
    *continuous.__all__, *composite.__all__, *discrete.__all__, *distribution.__all__,
    *gamma_family.__all__, *kl.__all__, *multivariate_normal.__all__, *transforms.__all__,
]  # fmt: skip
