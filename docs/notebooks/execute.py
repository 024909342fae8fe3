"""Executes the notebooks of this folder anew, and fails if one prints something else than what is stored in it.

    make notebooks            # all; nothing is written
    make notebooks WRITE=1    # store what they print and draw now

A cell with the tag `varies` may print something else each time; pictures are stored and not compared.
"""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300


def execute(notebook: Any) -> None:
    """Run all cells in an empty folder, and keep what they print and draw without the folder's name."""
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=TIMEOUT_SECONDS, record_timing=False, coalesce_streams=True,
            resources={"metadata": {"path": folder}}, extra_arguments=["--log-level=40"],
        ).execute()  # fmt: skip
        for cell in code_cells(notebook):
            cell.outputs = [
                output for output in cell.outputs if output.get("name") != "stderr"
            ]
            for output in cell.outputs:
                if "text" in output:
                    output.text = output.text.replace(f"{folder}/", "")
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        }
    )


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook: Any) -> Iterator[str]:
    """The lines that a notebook prints, each with the number of its cell, but for cells that say that theirs vary."""
    for number, cell in enumerate(code_cells(notebook), 1):
        if "varies" not in cell.metadata.get("tags", ()):
            for output in cell.outputs:
                text = output.get("text") or output.get("data", {}).get(
                    "text/plain", ""
                )
                yield from (f"[{number}] {line}" for line in text.splitlines())


def main() -> int:
    """Execute the notebooks that are named, or all. Returns 1 if one of them prints something else."""
    write = "--write" in sys.argv[1:]
    names = [name for name in sys.argv[1:] if name != "--write"]
    failed = 0
    for path in [HERE / name for name in names] or sorted(HERE.glob("*.ipynb")):
        stored = nbformat.read(path, as_version=4)
        before = list(printed(stored))
        started = time.monotonic()
        execute(stored)
        after = list(printed(stored))
        sys.stdout.write(
            f"{path.name}: {time.monotonic() - started:.0f} s, {'same' if before == after else 'differs'}\n"
        )
        if write:
            nbformat.write(stored, path)
        elif before != after:
            failed = 1
            sys.stdout.write(
                "\n".join(
                    difflib.unified_diff(
                        before, after, "stored", "now", n=1, lineterm=""
                    )
                )
                + "\n"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
