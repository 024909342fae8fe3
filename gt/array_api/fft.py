"""The Array API's `fft` extension: the client's, under the name by which programs import it."""

from __future__ import annotations

from gt.client.array_api.fft import *  # noqa: F403  # all of its public names
from gt.client.array_api.fft import __all__  # noqa: F401
