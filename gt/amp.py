"""Automatic mixed precision, under the name by which programs import it."""

from __future__ import annotations

from gt.client.autograd.grad_scaler import *  # noqa: F403
from gt.client.autograd.grad_scaler import __all__ as _scaled
from gt.client.tensor.autocast import *  # noqa: F403  # all of its public names
from gt.client.tensor.autocast import __all__ as _cast

__all__ = [*_cast, *_scaled]  # noqa: PLE0604  # both are lists of strings
