"""The tests of workers that compute with PyTorch take minutes: `make torch-worker-test` runs them, and no other target."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("GT_TORCH_WORKER_TESTS") else ["test_*.py"]
