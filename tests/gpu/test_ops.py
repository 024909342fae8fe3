"""Every kernel on the GPU: the tests of tests/worker/kernels once more, by CuPy, against the same judges."""

from __future__ import annotations

from card import CARD
from loading import kernel_tests

from gt.worker.base import backend

globals().update(kernel_tests(CARD if backend.diagnose()["reason"] else backend.backend("cuda:0").xp, "gpu"))
