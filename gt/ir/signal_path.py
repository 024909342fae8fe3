"""Signal paths: how deep signals nest and how long their names are, which clients and decoders bound alike."""

from __future__ import annotations

from collections.abc import Sequence

from gt.bounds import MAX_NAME_LENGTH, MAX_PATH_DEPTH, MAX_PATH_LENGTH
from gt.errors import ProtocolError


def path_error(names: Sequence[str]) -> str | None:
    """What is wrong with a path or a part of one; None for nothing."""
    if len(names) > MAX_PATH_DEPTH:
        return f"signals nest at most {MAX_PATH_DEPTH} deep, not {len(names)}"
    length = len(names)
    for name in names:
        length += len(name)
        if len(name) > MAX_NAME_LENGTH:
            return f"a signal's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}: {name[:40]!r}…"
    if length > MAX_PATH_LENGTH:
        return f"a path of signals has at most {MAX_PATH_LENGTH} characters, not {length}: nest fewer, or name them shorter"
    return None


def check_path(signal: object) -> tuple[str, ...]:
    """A path of signals from the wire. Raises `ProtocolError`."""
    if not (isinstance(signal, (list, tuple)) and all(isinstance(name, str) for name in signal)):
        raise ProtocolError("a signal path is a list of names")
    wrong = path_error(signal)
    if wrong is not None:
        raise ProtocolError(wrong)
    return tuple(signal)
