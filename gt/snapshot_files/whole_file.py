"""Files that are whole or not there: written under another name, and renamed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, *, sync: bool) -> Iterator[BinaryIO]:
    """A file to write to, which is at `path` once the block ends without an error, and nowhere after an error.

    With `sync` it is on the disk then, or else only safe from the end of a process. Raises `OSError` that names the file.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
        if sync:
            sync_folder(path.parent)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as where the disk is full
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def sync_folder(folder: Path) -> None:
    """See that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
