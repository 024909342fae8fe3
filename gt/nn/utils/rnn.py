"""Sequences of different lengths, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn.packed_sequence import *  # noqa: F403  # all of its public names
from gt.client.nn.packed_sequence import __all__ as __all__  # noqa: PLC0414  # and their list
