"""`python -m site_builder.run_pages [--write] [PAGE …]`: does what pages say, and compares what that prints with what they say.

A page with a `console` block is run in an empty folder, with a home of its own: blocks with a title are the files of that name,
and each line after `$ ` is typed into one shell. What is expected may have `...` for any text; a comment `<!-- numbers vary -->`
before a block lets every number in it be another one, and bars as long as they are. An example after a comment `<!-- run -->` has
to end without an error. Daemons that a page leaves running are ended. Pages of docs/tutorial have the files of those before.
With `--write`, what was printed replaces what was expected, where that is not so.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from site_builder.code_blocks import Block, blocks_of
from site_builder.source_pages import ROOT, source_pages

LONGEST = 300.0
"""The seconds after which a page is given up."""

FORMS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Step(NamedTuple):
    """A command of a page, and what it is said to print."""

    line: int
    """Where it is, from 1."""
    command: str
    expected: str
    numbers_vary: bool


def runnable_pages() -> list[str]:
    """The pages that can be run, by their paths in the repository."""
    return [page for page in source_pages() if page.endswith(".md") and steps_of(page, (ROOT / page).read_text())]


def earlier_files(page: str) -> list[Block]:
    """The files that a step of a tutorial has from the steps before, in order."""
    folder = (ROOT / page).parent
    if folder.name != "tutorial":
        return []
    before = [path for path in sorted(folder.glob("*.md")) if path.name < Path(page).name]
    return [block for path in before for block in files_of(path.name, path.read_text())]


def steps_of(page: str, text: str) -> list[Step]:
    """What is typed into the shell, in the order of the page."""
    return [step for block in blocks_of(page, text) for step in _steps(block)]


def files_of(page: str, text: str) -> list[Block]:
    """The files that a page has the reader write; an example that is marked to be run is one, too."""
    named = (
        block._replace(title=block.title or _example(block) * (block.mark == "run")) for block in blocks_of(page, text)
    )
    return [block for block in named if block.title]


def _example(block: Block) -> str:
    return f"example{block.line}.py"


def _steps(block: Block) -> list[Step]:
    found: list[Step] = []
    if block.mark == "run":  # what it prints is not on the page: only that it ends well is asked
        return [Step(block.line + 1, f"python {_example(block)} > said.txt 2>&1 || cat said.txt", "", False)]
    if block.language != "console":
        return []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append(Step(number, line[2:], "", block.mark == "numbers vary"))
        elif line.startswith("> ") and found and not found[-1].expected:
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
        elif found:
            found[-1] = found[-1]._replace(expected=f"{found[-1].expected}{line}\n")
    return found


def matches(step: Step, printed: str) -> bool:
    """Whether a command has printed what the page says."""
    expected = step.expected
    if step.numbers_vary:
        varying = ((r"[▁-█░▒▓]+", ""), (r"\d[\d,]*(\.\d+)?", "0"))
        for pattern, to in varying:
            expected, printed = (re.sub(pattern, to, text) for text in (expected, printed))
    return doctest.OutputChecker().check_output(expected, printed, FORMS)


def run_page(page: str, text: str) -> tuple[list[tuple[Step, str]], str]:
    """Run a page. Returns each step that prints something else than the page says, with that, and what went wrong otherwise."""
    steps = steps_of(page, text)
    with tempfile.TemporaryDirectory(prefix="gt-page-") as name:
        folder = Path(name)
        script = ["set -m", "cd work"]
        (folder / "work").mkdir()
        for block in earlier_files(page):
            (folder / "work" / block.title).write_text(block.text)
        files = files_of(page, text)
        for number, step in enumerate(steps):
            for block in [each for each in files if each.line < step.line]:  # a later block may change a file
                files.remove(block)
                held = folder / f"file-{block.line}"
                held.write_text(block.text)
                script.append(f"cp {held} {shlex.quote(block.title)}")
            script += [f"echo @@@ {number}", step.command]
        (folder / "script").write_text("\n".join(script) + "\n")
        printed, fault = _run(folder)
    found = [(step, printed.get(number, "(not reached)\n")) for number, step in enumerate(steps)]
    return [(step, text) for step, text in found if not matches(step, text)], fault


def told(page: str, step: Step, printed: str) -> str:
    """A paragraph about a step that does not print what the page says."""
    return f"{page}:{step.line}: $ {step.command}\n  should print:\n{_indented(step.expected)}  it printed:\n{_indented(printed)}"


def rewritten(text: str, differences: list[tuple[Step, str]]) -> str:
    """A page that says what was printed."""
    lines = text.splitlines(keepends=True)
    for step, printed in reversed(differences):
        if not lines[step.line - 1].startswith("$ "):
            continue
        first = step.line + step.command.count("\n")
        lines[first : first + step.expected.count("\n")] = [shortened(printed)] if printed.strip() else []
    return "".join(lines)


def shortened(printed: str) -> str:
    """What a page shows of what was printed: of a traceback, the frames of the reader's own files."""
    lines: list[str] = []
    hidden = False
    for line in printed.rstrip().splitlines():
        frame = re.match(r'  File "(.*?)"', line)
        hidden = "/" in frame[1] if frame else hidden and line.startswith("    ")
        lines += [] if hidden and lines[-1:] == ["..."] else ["..."] if hidden else [line.rstrip()]
    return "\n".join(lines) + "\n"


def _run(folder: Path) -> tuple[dict[int, str], str]:
    """Run the script of a folder. Returns what each command printed, and what went wrong with the whole."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment |= {"PATH": path, "HOME": str(folder), "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "", "NO_COLOR": "1"}
    environment |= {
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_CACHE_HOME": "",
        "XDG_CONFIG_HOME": "",
        "PYTHONPATH": "",
    }
    (folder / "run").mkdir(mode=0o700)
    rest = ""
    with (folder / "out").open("w") as out:
        shell = subprocess.Popen(
            ["bash", folder / "script"], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(LONGEST)
        except subprocess.TimeoutExpired:
            rest = f"it did not end within {LONGEST:g} s"
        finally:
            _end_session(shell.pid)
            shell.wait()
    parts = re.split(r"^@@@ (\d+)\n", (folder / "out").read_text(), flags=re.MULTILINE)
    printed = {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}
    where = str(folder / "work") + "/"
    return {number: text.replace(where, "").replace(str(folder), "~") for number, text in printed.items()}, rest


def _end_session(session: int) -> None:
    """End all processes of a shell's session, first as Ctrl-C would, so that daemons end what they started."""
    for ends in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 10
        left = _processes(session)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, ends)
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = _processes(session)


def _processes(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, inside = path.read_text().rpartition(")")[2].split()[:4]
            if int(inside) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def main(arguments: list[str]) -> int:
    """Run the pages that are named, or all that can be run. Returns the exit status."""
    faults = []
    for page in [each for each in arguments if each != "--write"] or runnable_pages():
        started = time.monotonic()
        text = (ROOT / page).read_text()
        differences, fault = run_page(page, text)
        found = [told(page, *each) for each in differences] + ([f"{page}: {fault}"] if fault else [])
        if "--write" in arguments:
            (ROOT / page).write_text(rewritten(text, differences))
        sys.stdout.write(f"{page}: {'not as it says' if found else 'as it says'}, {time.monotonic() - started:.1f} s\n")
        sys.stdout.flush()
        faults += found
    sys.stderr.write("".join(each + "\n" for each in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
