"""Automatic mixed precision under its older path: `autocast` and `GradScaler` there take no kind of device."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import grad_scaler
from gt.client.tensor import autocast as casting

__all__ = ["GradScaler", "autocast"]


class autocast(casting.autocast):  # noqa: N801  # PyTorch's name
    """As `gt.autocast("cuda", ...)`: products in float16 unless `dtype` says otherwise."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(grad_scaler.GradScaler):
    """As `gt.amp.GradScaler`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
