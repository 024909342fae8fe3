"""The Array API's `linalg` extension: the client's, under the name by which programs import it."""

from __future__ import annotations

from gt.client.array_api.linalg import *  # noqa: F403  # all of its public names
from gt.client.array_api.linalg import __all__  # noqa: F401
