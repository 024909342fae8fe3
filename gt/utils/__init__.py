"""PyTorch's folder of this name: what is in it stands here under the same paths, and nothing else."""

from __future__ import annotations

from . import checkpoint as checkpoint
from . import data as data
