"""Threefry, from which JAX draws, in GT's unsigned integers: the bits are JAX's own.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import gt

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["threefry"]

ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY: Final = 0x1BD11BDA


def threefry(key1: Tensor, key2: Tensor, x1: Tensor, x2: Tensor) -> list[Tensor]:
    """The block cipher of 20 rounds, of two words each."""
    keys = (key1, key2, gt.bitwise_xor(gt.bitwise_xor(key1, key2), PARITY))
    x, y = gt.add(x1, key1), gt.add(x2, key2)
    for turn in range(5):
        for rotation in ROTATIONS[turn % 2]:
            x = gt.add(x, y)
            y = gt.bitwise_xor(_rotated(y, rotation), x)
        x = gt.add(x, keys[(turn + 1) % 3])
        y = gt.add(gt.add(y, keys[(turn + 2) % 3]), turn + 1)
    return [x, y]


def _rotated(x: Tensor, by: int) -> Any:
    return gt.bitwise_or(gt.bitwise_left_shift(x, by), gt.bitwise_right_shift(x, 32 - by))
