"""Lightning on the device: `Trainer(strategy=gt.torch.lightning.GTStrategy())`.

Of Lightning's two packages it takes the one that is installed, `lightning` first; `gt.torch` does not import it.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any, Final

import torch

from . import device
from .pytorch_internals import DEVICE, DEVICE_TYPE

__all__ = ["GTAccelerator", "GTStrategy"]

device.register()


def _lightning() -> str:
    """The package that is installed, as its modules are called. Raises `ImportError`."""
    if find_spec("lightning") is not None:
        return "lightning.pytorch"
    if find_spec("pytorch_lightning") is not None:
        return "pytorch_lightning"
    raise ImportError("gt.torch.lightning needs Lightning: pip install lightning")


_PACKAGE: Final = _lightning()
_Accelerator: Any = importlib.import_module(f"{_PACKAGE}.accelerators").Accelerator
_SingleDeviceStrategy: Any = importlib.import_module(f"{_PACKAGE}.strategies").SingleDeviceStrategy


class GTAccelerator(_Accelerator):  # type: ignore[misc]  # found when it is imported
    """What Lightning knows of the device. There is one: where tensors are is the config's business."""

    def setup_device(self, device: Any) -> None:
        """Nothing: a session starts by itself, or `gt.connect` did. Raises `ValueError` for another device."""
        if torch.device(device).type != DEVICE_TYPE:
            raise ValueError(f"this accelerator is for {DEVICE_TYPE}, not {device}")

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Nothing: `gt top` shows what the workers do."""
        return {}

    def teardown(self) -> None:
        """Nothing: the session goes on."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """1. Raises `ValueError` where a program asks for more."""
        if devices not in (1, "auto", "1", -1, "-1", [0]):
            raise ValueError(
                f"devices={devices!r}: {DEVICE_TYPE} is one device, which a config of GT spreads over all workers"
            )
        return 1

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[Any]:
        """The device."""
        return [torch.device(DEVICE)]

    @staticmethod
    def auto_device_count() -> int:
        """1."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """True."""
        return True

    @staticmethod
    def name() -> str:
        """The name by which a `Trainer` may have it."""
        return DEVICE_TYPE

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Let a registry know it by name."""
        accelerator_registry.register(cls.name(), cls, description="The workers of GT")


class GTStrategy(_SingleDeviceStrategy):  # type: ignore[misc]  # found when it is imported
    """Training on the device from one program."""

    strategy_name = DEVICE_TYPE

    def __init__(self, accelerator: Any = None, checkpoint_io: Any = None, precision_plugin: Any = None) -> None:
        super().__init__(DEVICE, accelerator or GTAccelerator(), checkpoint_io, precision_plugin)
