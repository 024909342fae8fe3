"""Modules, as in PyTorch: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn import *  # noqa: F403  # all of its public names
from gt.client.nn import __all__ as __all__

from . import functional as functional
from . import modules as modules
from . import parallel as parallel
from . import parameter as parameter
from . import utils as utils
