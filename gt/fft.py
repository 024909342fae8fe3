"""Fourier transforms, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.fft import *  # noqa: F403  # all of its public names
from gt.client.fft import __all__  # noqa: F401
