"""Draws docs/img/top.svg: `gt top` while the digits example runs on four workers.

make docs-images
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console

import gt
from gt.monitor.top.app import Top
from gt.monitor.top.ink import Ink
from gt.monitor.top.source import LiveSource
from gt.service.launch import Local

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLE = "examples/digits.py"
ADDRESS = "tcp://127.0.0.1:7000"
SIZE = (132, 36)
TIMEOUT = 60.0


def work(ends: threading.Event) -> None:
    """Train until it is enough."""
    module = ModuleType("digits")
    sys.modules["digits"] = module
    # Compiled here, so that lines are named as in the repository and not by a folder of this machine.
    exec(compile((ROOT / EXAMPLE).read_text(), EXAMPLE, "exec"), vars(module))
    gt.connect(ADDRESS, config=str(ROOT / "configs" / "digits.yaml"))
    while not ends.is_set():
        module.train(4, "", Console(quiet=True))
    gt.disconnect()


async def draw(live: LiveSource) -> str:
    """The screen, when there is half a minute of history to show."""
    app = Top(live, Ink(), frame=None)
    async with app.run_test(size=SIZE) as pilot:
        app.view.window = 2.0
        deadline = time.monotonic() + TIMEOUT
        while not app.shown.workers or min(len(worker.history) for worker in app.shown.workers) < 30:
            assert time.monotonic() < deadline, "a minute brings half a minute of history"
            await pilot.pause(0.5)
            app.tick()
        await pilot.pause()
        return app.export_screenshot(simplify=True)


if __name__ == "__main__":
    local, ends = Local(4, address=ADDRESS), threading.Event()
    trainer = threading.Thread(target=work, args=(ends,))
    trainer.start()
    try:
        live = LiveSource(ADDRESS, TIMEOUT)
        (HERE / "top.svg").write_text(asyncio.run(draw(live)), "utf-8")
        live.close()
    finally:
        ends.set()
        trainer.join()
        local.close()
