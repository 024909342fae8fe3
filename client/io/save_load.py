"""Tensors in files: safetensors, which other libraries read, and which run no code when they are opened.

A dict of tensors by name, as `state_dict()` gives it, is a plain file of that format. Whatever else is made of dicts, lists,
tuples, tensors, numbers, text and None is one too: its tensors are named by where they are, and the file's metadata say
how they belong together. What PyTorch saved is read by `client/io/torch_checkpoint.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import safetensors
import safetensors.numpy

from gt.client.ops import creation
from gt.client.session import sessions
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GTError
from gt.ir.dtypes import complex128

from . import torch_checkpoint

FORM_KEY: Final = "gt"
"""The key of the metadata that hold the form of what was saved."""
PLAIN_TYPES: Final = (bool, int, float, str, type(None))

File = str | os.PathLike[str]
Stream = IO[bytes]
"""An object with `read` or `write`, such as an open file or `io.BytesIO`."""


def save(obj: Any, f: File | Stream, pickle_module: Any = None, pickle_protocol: int = 2) -> None:
    """Write tensors to a file, by its path or open to be written: a `state_dict()`, a tensor, or dicts, lists and tuples
    of tensors, numbers and strings.

    Waits for the values; nothing is pickled, whatever `pickle_module` and `pickle_protocol` say. If something fails, no
    partial file remains. Raises `TypeError` for objects that would need code to be read again, and `DTypeError` for
    complex128, which the format lacks.
    """
    found: dict[str, Tensor] = {}
    form = taken_apart(obj, "", found, "save")
    plain = isinstance(obj, Mapping) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in obj.items())
    for name, tensor in found.items():
        if tensor.dtype is complex128:
            raise DTypeError(f"save: {name} is complex128, which safetensors files cannot hold: save it as complex64")
    futures = {name: tensor.detach().fetch() for name, tensor in found.items()}
    arrays = {
        name: np.ascontiguousarray(future.result()).reshape(found[name].shape) for name, future in futures.items()
    }
    metadata = None if plain else {FORM_KEY: json.dumps(form)}
    if not isinstance(f, str | os.PathLike):
        f.write(safetensors.numpy.save(arrays, metadata))
        return
    path = Path(f)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(number)
    temporary = Path(name)
    try:
        safetensors.numpy.save_file(arrays, temporary, metadata)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def load(
    f: File | Stream,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool = True,
    mmap: bool = False,
) -> Any:
    """Read a file written by `save`, by `torch.save`, or by any library as safetensors: a dict of tensors, or what
    was saved.

    Files of `torch.save` are read without PyTorch if they contain tensors, numbers, strings and containers of them.
    No code in them is executed, whatever `weights_only` says. `map_location`, `pickle_module` and `mmap` are accepted
    and have no effect, because the service decides where tensors live. What is open is read to its end, by way of a
    temporary file. Raises `GTError` for other formats.
    """
    if not isinstance(f, str | os.PathLike):
        with tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(f, copy)
            copy.flush()
            return load(copy.name)
    sessions.current()  # which a first tensor would start: an error there is none of the file's
    with Path(f).open("rb") as file:
        first = file.read(9)
        file.seek(0)
        if first.startswith(torch_checkpoint.ZIP_PREFIX):
            return torch_checkpoint.load_zip(file, os.fspath(f))
        if first.startswith(torch_checkpoint.PICKLE_PREFIX) and not first.endswith(
            b"{"
        ):  # which stands behind safetensors' length
            return torch_checkpoint.load_stream(file, os.fspath(f))
    try:
        with safetensors.safe_open(os.fspath(f), framework="np") as opened:
            form = (opened.metadata() or {}).get(FORM_KEY)
            found = {name: creation.from_numpy(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118  # no dict
    except safetensors.SafetensorError as error:
        raise GTError(f"{os.fspath(f)} is neither a safetensors file ({error}) nor one of torch.save") from None
    if form is None:
        return found
    try:
        return put_together(json.loads(form), found)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise GTError(
            f"{os.fspath(f)}: its metadata do not say how its tensors belong together: save it again"
        ) from None


def taken_apart(obj: Any, name: str, found: dict[str, Tensor], what: str) -> Any:
    """The form of an object, in JSON; its tensors go to `found`, by name. `what` asks for it, as errors say."""
    if isinstance(obj, Tensor):
        name = name or "tensor"
        while name in found:
            name += "_"
        found[name] = obj
        return ["tensor", name]
    if isinstance(obj, PLAIN_TYPES):
        return ["value", obj]
    if isinstance(obj, Mapping):
        if not all(isinstance(key, str | int | bool | float | None) for key in obj):
            raise TypeError(f"{what}: the keys of {name or 'a dict'} are text or numbers")
        return ["dict", [[key, taken_apart(value, _below(name, key), found, what)] for key, value in obj.items()]]
    if isinstance(obj, list | tuple):
        kind = "list" if isinstance(obj, list) else "tuple"
        return [kind, [taken_apart(value, _below(name, at), found, what) for at, value in enumerate(obj)]]
    if isinstance(obj, np.generic):
        return ["value", obj.item()]
    where = f" at {name}" if name else ""
    hint = "; save its state_dict()" if hasattr(obj, "state_dict") else ""
    raise TypeError(
        f"{what} takes tensors, numbers, text, and dicts, lists and tuples of them, not {type(obj).__name__}{where}{hint}"
    )


def _below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def put_together(form: Any, found: Mapping[str, Any]) -> Any:
    """The object that has a form, with what `found` has by the names of its tensors."""
    kind, content = form
    if kind == "tensor":
        return found[content]
    if kind == "dict":
        return {key: put_together(value, found) for key, value in content}
    if kind in ("list", "tuple"):
        values = [put_together(value, found) for value in content]
        return values if kind == "list" else tuple(values)
    return content
