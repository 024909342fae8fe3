"""The Python Array API standard: the client's namespace itself, under the name by which programs import it."""

from __future__ import annotations

import sys

from gt.client import array_api

sys.modules[__name__] = array_api
