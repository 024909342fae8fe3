"""Signals, to which the YAML binds rules: the client's, under the name by which programs import them."""

from __future__ import annotations

from gt.client.tensor.signal_context import *  # noqa: F403  # all of its public names
from gt.client.tensor.signal_context import __all__ as __all__  # and their list

from . import windows as windows
