"""Makes a page of a notebook that has been run: its text, its code, and what the code printed and drew."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

LANGUAGES = {".py": "python", ".yaml": "yaml"}
"""Of the files that cells write."""


def notebook_page(path: Path, target: Path) -> str:
    """The Markdown of a notebook. Its pictures are written beside `target`."""
    cells = json.loads(path.read_text())["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source:
            parts.append(_code(source))
            for index, output in enumerate(cell["outputs"]):
                parts += _shown(output, target, f"{path.stem}-{number}-{index}.png")
    return "\n\n".join(parts) + "\n"


def _code(source: str) -> str:
    """A cell's code: a command of the shell, a file that it writes, or Python."""
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile "):
        name = first.split()[1]
        return f'```{LANGUAGES.get(Path(name).suffix, "text")} title="{name}"\n{rest}\n```'
    lines = source.splitlines()
    if all(line.startswith("!") for line in lines):
        return "```sh\n" + "\n".join(line[1:] for line in lines) + "\n```"
    return f"```python\n{source}\n```"


def _shown(output: dict[str, Any], target: Path, picture: str) -> list[str]:
    """What a cell printed, drew or returned."""
    data = output.get("data", {})
    if "image/png" in data:
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / picture).write_bytes(base64.b64decode("".join(data["image/png"])))
        return [f'<p><img src="{picture}" alt="what the cell above draws"></p>']
    if output["output_type"] == "error":
        text = f"{output['ename']}: {output['evalue']}"
    else:
        text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    if not text or re.fullmatch(r"(Writing|Overwriting) \S+", text):
        return []
    return [f"```{{.text .cell-output}}\n{text}\n```"]
