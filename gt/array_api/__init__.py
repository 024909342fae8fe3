"""The Python Array API standard, 2024.12: the client's, under the name by which programs import it."""

from __future__ import annotations

from gt.client import array_api
from gt.client.array_api import *  # noqa: F403  # all of its public names
from gt.client.array_api import __array_api_version__ as __array_api_version__
from gt.client.array_api import __array_namespace_info__ as __array_namespace_info__

from . import fft as fft
from . import linalg as linalg

__all__ = [*array_api.__all__, "fft", "linalg"]  # noqa: PLE0604  # a list of strings
