"""All benchmarks, one after the other: python benchmarks/suite.py [--rounds N] [--only run,planner,...]

Prints their tables, writes `benchmarks/results/<date>-<machine>.json`, and draws the ratios of `run.py`, those with a goal each
beside it and the others, as `docs/img/bench.svg` when matplotlib is installed. Nothing passes or fails here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PARTS = ("run", "memory", "breakdown", "planner", "scale", "collectives", "deterministic", "events")
PACKAGES = ("numpy", "torch", "jax", "distributed", "ray", "cupy", "pyzmq", "msgpack")


class Figure(NamedTuple):
    """One bar: GT's time over a peer's, and what it should be at most, if there is a goal."""

    what: str
    peer: str
    ratio: float
    goal: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the goal was reached; without one, whether GT takes no longer than the peer."""
        return self.ratio <= (1.0 if self.goal is None else self.goal)


def figures(found: list[dict[str, Any]]) -> list[Figure]:
    """The ratios that `run.py` has found."""
    ways = ((each, each["way"].removeprefix("GT").strip(", ")) for each in found)
    return [
        Figure(f"{each['what']}, {way}" if way else each["what"], each["peer"], each["ratio"], each["goal"])
        for each, way in ways
    ]


def machine() -> str:
    """The class of this machine, as part of a file's name."""
    return f"{platform.machine()}-{len(os.sched_getaffinity(0))}-cores"


def commit(folder: Path) -> str:
    """What is checked out there, if it is a checkout of git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def facts() -> dict[str, Any]:
    """On what was measured."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"), "machine": machine(), "python": platform.python_version(), "versions": versions,
        "commit": commit(HERE), "load": os.getloadavg()[0],
    }  # fmt: skip


def measured(part: str, rounds: int | None) -> Any:
    """What one benchmark says, which is printed too; None when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, str(HERE / f"{part}.py"), "--json", str(file)]
        if rounds is not None:
            command += ["--rounds", str(rounds)]
        print(f"== {part}", flush=True)
        status = subprocess.run(command, check=False).returncode
        if status or not file.exists():
            print(f"{part}.py ended with status {status}: it is not in the results", file=sys.stderr)
            return None
        return json.loads(file.read_text("utf-8"))


def draw(found: list[Figure], caption: str, file: Path) -> None:
    """The ratios as bars on logarithmic axes: those with a goal beside it, and below them those to other runtimes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gt"  # the same figures are the same file
    from matplotlib import pyplot as plt

    ways = ([x for x in found if x.goal is not None], [x for x in found if x.goal is None])
    panels = [panel for panel in ways if panel]
    figure, all_axes = plt.subplots(
        len(panels), figsize=(8.5, 0.48 * len(found) + 1.3 * len(panels)), layout="constrained", squeeze=False,
        height_ratios=[len(panel) + 1 for panel in panels],
    )  # fmt: skip
    for axes, panel in zip(all_axes[:, 0], panels, strict=True):
        _draw_panel(axes, panel)
    figure.supxlabel(textwrap.fill(caption, 110), fontsize=8)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def _draw_panel(axes: Any, panel: list[Figure]) -> None:
    goals = panel[0].goal is not None
    lines = [1.0 if each.goal is None else each.goal for each in panel]
    least = min(map(min, lines, [each.ratio for each in panel])) / 2
    most = max(map(max, lines, [each.ratio for each in panel])) * 4
    for at, (each, line) in enumerate(zip(panel, lines, strict=True)):
        start = least if goals else 1.0
        colour = "#2a9d6f" if each.reached else "#d98032"
        axes.barh(at, each.ratio - start, height=0.5, left=start, color=colour, zorder=2)
        axes.plot([line] * 2, [at - 0.36, at + 0.36], color="#333333", linewidth=2, zorder=3)
        text = f" {each.ratio:.2f}" if each.ratio >= 0.1 else f" 1 / {1 / each.ratio:,.0f}"
        axes.annotate(text, (max(each.ratio, line), at), va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    beside = [f"{each.peer}, ≤ {each.goal:g}" if goals else each.peer for each in panel]
    axes.set_yticks(
        range(len(panel)), [f"{each.what}\nbeside {peer}" for each, peer in zip(panel, beside, strict=True)]
    )
    axes.invert_yaxis()
    axes.grid(axis="x", which="both", color="#dddddd", linewidth=0.5)
    steps = [2.0**at for at in range(-4, 5)] if most / least < 1000 else [10.0**at for at in range(-5, 5)]
    ticks = [at for at in steps if least < at < most]
    axes.set_xticks(ticks, [f"{at:g}" if at >= 0.01 else f"1/{1 / at:,.0f}" for at in ticks])
    axes.minorticks_off()
    what = "the dark line is the goal" if goals else "other peers; left of the line GT takes less time"
    axes.set_xlabel(f"GT / peer; {what}", fontsize=8)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Measure, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="of each benchmark (default: its own)")
    parser.add_argument("--redraw", action="store_true", help="measure nothing, draw what was measured today")
    parser.add_argument("--only", default=",".join(PARTS), help="a comma-separated choice of: %(default)s")
    options = parser.parse_args()
    known = facts()
    wanted = [] if options.redraw else options.only.split(",")
    parts = {part: measured(part, options.rounds) for part in wanted}
    results = HERE / "results" / f"{known['date']}-{known['machine']}.json"
    results.parent.mkdir(exist_ok=True)
    before = json.loads(results.read_text("utf-8"))["parts"] if results.exists() else {}
    parts = before | {part: found for part, found in parts.items() if found is not None}
    if wanted:
        results.write_text(json.dumps({**known, "parts": parts}, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"wrote {results}")
    found = figures(parts.get("run", {}).get("figures", []))
    if found:
        picture = HERE.parent / "docs" / "img" / "bench.svg"
        caption = f"{known['machine']}, {known['date']}, " + ", ".join(f"{k} {v}" for k, v in known["versions"].items())
        try:
            draw(found, caption, picture)
        except ImportError as error:
            print(f"{picture.name} was not drawn: {error}; pip install matplotlib")
        else:
            print(f"drew {picture}")


if __name__ == "__main__":
    main()
