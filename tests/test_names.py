"""Names: a class is called like no other in the package, and a constant says of what it is."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parent.parent
ROOMS: Final = ("gt", "client", "dispatcher", "monitor", "worker")

TWICE: Final = {
    "Device": "a record of `gt.devices()`, and the event from which monitors know a GPU",
    "GradScaler": "PyTorch's two, `gt.amp.GradScaler` and the older `gt.cuda.amp.GradScaler`",
    "Health": "a record of `gt.devices()`, and the message that brings it",
    "WorkerLost": "the error that a program sees, and the event that monitors see",
    "autocast": "PyTorch's two, `gt.autocast` and the older `gt.cuda.amp.autocast`",
    "finfo": "PyTorch's, and the array API's, whose fields are other ones",
    "iinfo": "PyTorch's, and the array API's, whose fields are other ones",
}
"""Classes that two modules have under one name, each a public one, a message or an event, and why."""

# fmt: off
VAGUE: Final = frozenset((
    "ABOVE", "AFTER", "AHEAD", "ALIKE", "ALONE", "ALONG", "BARE", "BEFORE", "BEHIND", "BUSY", "CALM", "COSTLY", "CROWD",
    "CROWDED", "EAGER", "EVERY", "FASTEST", "FEW", "FIRST", "FRESH", "GONE", "HALF", "HOT", "IDLE", "KEEP", "KEPT", "LARGE",
    "LARGEST", "LAST", "LATE", "LATEST", "LEAST", "LIFE", "LIMIT", "LONG", "LONGEST", "LOOK", "LOOKS", "LOOSE", "LOST",
    "MANY", "MOMENT", "MOST", "MUCH", "NARROW", "NEAR", "OFTEN", "PACE", "PATIENCE", "PLAIN", "REACH", "SAVED", "SETTLED",
    "SHARED", "SHOWN", "SILENCE", "SILENT", "SLOW", "SMALL", "SPARSE", "SPREAD", "STAGED", "STALE", "STUCK", "TALL", "TINY",
    "TURN", "UNEVEN", "USUAL", "WANTED", "WIDE", "WORTH",
))
# fmt: on
"""Words that do not say of what they are. `MOST_ROWS`, `SMALL_BYTES` or `PATIENCE_SECONDS` do."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by its path."""
    paths = sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py"))
    return {str(path.relative_to(REPOSITORY)): ast.parse(path.read_text()) for path in paths}


def classes(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Where each name of a class is given."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return found


def constants(tree: ast.Module) -> list[tuple[str, int]]:
    """The names that a module gives to what it assigns, with their lines."""
    found = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        found += [(name.id, node.lineno) for name in names]
    return found


def test_no_two_classes_have_one_name() -> None:
    found = {name: places for name, places in classes(modules()).items() if len(places) > 1}
    assert {name: places for name, places in found.items() if name not in TWICE or len(places) > 2} == {}
    assert sorted(found) == sorted(TWICE), "these are there once: take them out of the list"


def test_a_class_that_is_there_twice_is_found() -> None:
    one = ast.parse("class Outer:\n    class Moved: ...\n")
    other = ast.parse("def make():\n    class Moved: ...\n")
    found = classes({"a.py": one, "b.py": other})
    assert found == {"Outer": ["a.py:1"], "Moved": ["a.py:2", "b.py:2"]}


def test_no_constant_is_one_vague_word() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, tree in modules().items()
        for name, line in constants(tree)
        if name.strip("_") in VAGUE
    ]
    assert found == []


def test_a_vague_constant_is_found() -> None:
    tree = ast.parse("MOST: Final = 8\n_FEW, WIDTH = 1, 2\nmost = 3\ndef f():\n    LARGE = 1\n")
    names = constants(tree)
    assert names == [("MOST", 1), ("_FEW", 2), ("WIDTH", 2), ("most", 3)]
    assert [name for name, _ in names if name.strip("_") in VAGUE] == ["MOST", "_FEW"]
