"""Runs each program of this folder whose library is installed, and compares what they print.

make comparison
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300

PROGRAMS = {
    "with_gt.py": ("gt-tensor", []),
    "with_dtensor.py": ("torch", ["-m", "torch.distributed.run", "--nproc-per-node", "2"]),
    "with_jax.py": ("jax", []),
    "with_dask.py": ("distributed", []),
    "with_ray.py": ("ray", []),
}
"""Of each program: the package that it needs, and what starts it."""

HINTS = {
    "with_ray.py": "If Ray did not start: `ray stop` ends what an earlier run has left, RAY_ADDRESS must not be set, /tmp and "
    "/dev/shm need room, and /tmp/ray/session_latest/logs says more."
}
"""What to do where a program failed."""

# gloo on a machine whose name has no address, and Ray without what it sends about its use.
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def main() -> int:
    """Returns 1 if two programs print different numbers."""
    printed = set()
    for program, (package, launcher) in PROGRAMS.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            print(f"{package}: not installed")
            continue
        done = subprocess.run(
            [sys.executable, *launcher, program], cwd=HERE, env=os.environ | SETTINGS, capture_output=True, text=True,
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            print(f"{program} with {package} {version} failed: {last}", file=sys.stderr)
            print(f"{HINTS.get(program, '')} All that it says: cd {HERE}; python {program}".strip(), file=sys.stderr)
            return 1
        line = done.stdout.strip().splitlines()[-1]
        print(f"{package} {version}: {line}", flush=True)
        printed.add(line)
    return int(len(printed) > 1)


if __name__ == "__main__":
    sys.exit(main())
