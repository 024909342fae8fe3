"""First values of parameters, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn.init import *  # noqa: F403  # all of its public names
from gt.client.nn.init import __all__ as __all__  # noqa: PLC0414  # and their list
from gt.client.nn.init import _calculate_fan_in_and_fan_out as _calculate_fan_in_and_fan_out  # noqa: PLC0414  # many name it
