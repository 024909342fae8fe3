"""Checkpoints of the ecosystem, safetensors files in one piece or many, read to where a model's config wants each tensor.

The files are mapped: of a tensor the program touches the pages of the shard that it is copying for a worker, and keeps none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import safetensors
from torch import nn

import gt

from .device_tensor import DeviceTensor
from .module_paths import place, placed_as, signals_of_path
from .pytorch_internals import DEVICE_TYPE
from .values import DTYPES, from_cpu

__all__ = ["load_checkpoint"]

INDEX: Final = "model.safetensors.index.json"
WHOLE: Final = "model.safetensors"
MAX_NAMED: Final = 8
"""The most names that an error lists."""


class _Place(NamedTuple):
    """Where a model has a tensor: in a module, by a name."""

    module: Any
    path: str
    """The module's."""
    name: str

    @property
    def key(self) -> str:
        """The tensor's name in a state dict."""
        return f"{self.path}.{self.name}" if self.path else self.name


def load_checkpoint(model: Any, path: str | os.PathLike[str]) -> None:
    """Give a model the tensors of a safetensors file, of a folder with `model.safetensors`, or with its parts and their index.

    The model may have been made under `torch.device("meta")`, so that its weights exist nowhere before. Each tensor goes to the
    workers by itself, in the shards that the config says for the module of that name, in the model's dtype. So do buffers that
    are in no file, as those that a model computes when it is made. Tied weights stay tied. The parameters are new ones: make
    the optimizer, and compile, afterwards.

    Raises `FileNotFoundError`, and `gt.GTError` where the files do not have what the model needs, or in other shapes; then the
    model is as it was.
    """
    files = _files(Path(path))
    shared, left = _places(model), []
    found: dict[int, str] = {}
    for number, (old, places) in shared.items():
        key = next((each.key for each in places if each.key in files), None)
        if key is not None:
            found[number] = key
        elif old.is_meta or any(each.name not in each.module._non_persistent_buffers_set for each in places):
            left.append(places[0].key)
    if left:
        raise gt.GTError(
            f"{path} has no {_listed(left)}: a model needs values for every parameter and buffer; what is computed, and in no "
            "file, must not be made on meta (accelerate.init_empty_weights() leaves buffers out)"
        )
    by_file: dict[str, list[int]] = {}
    for number, key in found.items():
        by_file.setdefault(files[key], []).append(number)
    wrong = [each for file, numbers in by_file.items() for each in _misfits(file, numbers, found, shared)]
    if wrong:
        raise gt.GTError(f"{path} does not fit the model: {_listed(wrong)}")
    for file, numbers in by_file.items():  # one is mapped at a time
        with safetensors.safe_open(file, framework="pt") as opened:
            for number in numbers:
                old, places = shared[number]
                _exchange(old, places, _put(opened.get_tensor(found[number]), old.dtype, places[0].path))
    for number, (old, places) in shared.items():
        if number not in found and old.device.type != DEVICE_TYPE:
            _exchange(old, places, _put(old, old.dtype, places[0].path))


def _misfits(
    file: str, numbers: list[int], found: dict[int, str], shared: dict[int, tuple[Any, list[_Place]]]
) -> Iterator[str]:
    """Which tensors of a file have another shape than in the model."""
    with safetensors.safe_open(file, framework="pt") as opened:
        for number in numbers:
            size, due = list(opened.get_slice(found[number]).get_shape()), list(shared[number][0].shape)
            if size != due:
                yield f"{found[number]}, which is {size} and not {due}"


def _files(path: Path) -> dict[str, str]:
    """By the names of tensors, the files that have them."""
    if path.is_dir():
        index = path / INDEX
        if index.exists():
            return {key: str(path / file) for key, file in json.loads(index.read_text())["weight_map"].items()}
        path = path / WHOLE
    with safetensors.safe_open(str(path), framework="pt") as opened:
        return dict.fromkeys(opened.keys(), str(path))


def _places(model: Any) -> dict[int, tuple[Any, list[_Place]]]:
    """The tensors of a model, by their ids, with all places of each."""
    found: dict[int, tuple[Any, list[_Place]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for name, each in table.items():
                if each is not None:
                    found.setdefault(id(each), (each, []))[1].append(_Place(module, path, name))
    return found


def _put(values: Any, dtype: Any, path: str) -> DeviceTensor:
    """A tensor on the workers, as the config says for a parameter of the module of this name."""
    signals = signals_of_path(path)
    with gt.no_grad(), placed_as(signals):
        x = from_cpu(values)
        if values.dtype != dtype:
            x = gt.cast(x, DTYPES[dtype])
    place(x, signals)
    made = DeviceTensor(x)
    made.signals = signals
    return made


def _exchange(old: Any, places: list[_Place], new: DeviceTensor) -> None:
    """Put a tensor in the place of another, wherever the model has it."""
    made = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
    made.signals = new.signals
    for each in places:
        table = each.module._parameters if each.name in each.module._parameters else each.module._buffers
        table[each.name] = made


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
