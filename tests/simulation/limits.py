"""An operator's file of limits for a simulated service, which changes while programs come and go."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from .service import Service

CHANGE_SECONDS = 5.0
"""The file changes about so often, in virtual seconds."""


class OperatorFile:
    """The file. Each of two users may have one session at a time; weights and rates change."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.path = Path(service.marks.name).with_suffix(".limits.yaml")
        self.random = random.Random(f"{service.scheduler.seed} limits")
        self.waited: set[bytes] = set()
        """The peers whose sessions have waited."""
        self.change()

    def change(self) -> None:
        """Say something else, until all has healed."""
        row = {
            "sessions": 1,
            "weight": self.random.choice([0.5, 1, 3]),
            "live_bytes": self.random.choice(["1GB", "unlimited"]),
            "instructions_per_second": "unlimited"
            if self.service.heals
            else self.random.choice([20, 200, "unlimited"]),
            "priority": self.random.choice(["interactive", "normal", "batch"]),
        }
        owner = {**row, "reserved": self.random.choice([0, 0.3])}
        self.path.write_text(f"default: {row}\nprincipals:\n  uid:{os.geteuid()}: {owner}\n".replace("'", ""))
        if not self.service.stops:
            scheduler = self.service.scheduler
            scheduler.at(scheduler.now + self.random.random() * 2 * CHANGE_SECONDS, self.change)

    def check(self, core: Any) -> None:
        """Nobody has more sessions than granted, but those that another connection is about to end."""
        self.waited |= {*core.service.queued.waiting}
        counts = Counter(client.program.principal for client in core.service.clients.values())
        assert all(count <= 1 for count in counts.values()), f"more sessions than granted: {counts}"
