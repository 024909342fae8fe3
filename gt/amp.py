"""Automatic mixed precision, under the name by which programs import it."""

from __future__ import annotations

from gt.client.autocast import *  # noqa: F403  # all of its public names
from gt.client.autocast import __all__ as _cast
from gt.client.scaling import *  # noqa: F403
from gt.client.scaling import __all__ as _scaled

__all__ = [*_cast, *_scaled]  # noqa: PLE0604  # both are lists of strings
