"""Modules, under the name that PyTorch's own files have for them."""

from __future__ import annotations

from gt.client.nn import *  # noqa: F403  # all of its public names
from gt.client.nn import __all__ as __all__

from . import batchnorm as batchnorm
from . import instancenorm as instancenorm
from . import utils as utils
