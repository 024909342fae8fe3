"""Clipping and vectors of parameters, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn.clipping import *  # noqa: F403  # all of its public names
from gt.client.nn.clipping import __all__ as __all__  # and their list

from . import rnn as rnn
