"""Two users of one CPU worker, whom an operator's file grants unlike shares of its time.

    python benchmarks/limits.py [--seconds 12]

Both always have plans of some tens of milliseconds queued. For each file it prints how many plans each user has run, and the
ratio that is due.
The users are two keys, so the service listens on a free port of the loopback interface.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

import sharing
from forked_programs import Program, together

import gt
from gt.service.launch import Local
from gt.wire.keys import new_key, own_key_path
from gt.wire.principals import USER

PLAN_SECONDS: Final = 0.03
FILES: Final = (
    ("no limits", "{}", 1.0),
    ("weight: 3", "{principals: {'key:a': {weight: 3}}}", 3.0),
    ("reserved: 0.75", "{principals: {'key:a': {reserved: 0.75}}}", 3.0),
)
"""By row: its name, the text of the limits file, and the ratio of the first user's plans to the second's that is due."""


def with_key(key: Path, program: Program) -> Program:
    """A program of whoever has a key."""

    def run(address: str, start: int, report: int) -> None:
        os.environ["GT_KEY"] = str(key)
        program(address, start, report)

    return run


def free_address() -> str:
    """An address at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GT_KEYS"] = folder
        keys = [new_key(name, USER) for name in ("a", "b")]
        gt.connect("inproc")  # everything that a program imports is there before the first is forked
        (gt.ones(2) + 1).sum().item()
        gt.disconnect()
        count = sharing.count_for(PLAN_SECONDS)
        file = Path(folder) / "limits.yaml"
        for name, text, due in FILES:
            file.write_text(text, "utf-8")
            os.environ["GT_KEY"] = str(own_key_path())  # of the daemons
            local = Local(1, address=free_address(), options=["--limits", str(file)])
            try:
                programs = [with_key(key, sharing.trainer(count, options.seconds)) for key in keys]
                (first, *_), (second, *_) = together(local.address, programs)
            finally:
                local.close()
            print(f"{name:15} {first:6} and {second:6} plans: {first / second:5.2f}, due {due:5.2f}")


if __name__ == "__main__":
    main()
