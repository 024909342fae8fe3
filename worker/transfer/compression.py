"""Lossless compression of pieces, where the link to the reader is so slow that it saves time.

A sample of the data is compressed first, and the rest only if that took less time than sending the saved bytes would have.
Weights and activations hardly become smaller, and cost one sample; masks, one-hot rows, sparse gradients and tokens do. LZ4 is
an extra (`pip install 'gt-tensor[compress]'`); a worker without it sends and receives everything uncompressed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gt.errors import ProtocolError

MIN_COMPRESSED_BYTES: Final = 4 << 10
"""Data of fewer bytes is not compressed, because the message alone costs as much."""
SAMPLE_BYTES: Final = 64 << 10
ROUND_TRIP_FACTOR: Final = 1.5
"""The time of compressing and decompressing together, relative to that of compressing."""


class Packer:
    """Compresses and decompresses. `pack(data)` and `unpack(data, nbytes)` are the compressor's; `clock` gives seconds."""

    def __init__(
        self,
        pack: Callable[[Any], bytes],
        unpack: Callable[[Any, int], bytes],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pack = pack
        self._unpack = unpack
        self._clock = clock

    def packed(self, data: memoryview, bandwidth: float) -> bytes | None:
        """The compressed bytes, if sending those over a link of `bandwidth` bytes/s is faster; else None."""
        if len(data) < MIN_COMPRESSED_BYTES:
            return None
        middle = max(0, (len(data) - SAMPLE_BYTES) // 2)
        sample = data[middle : middle + SAMPLE_BYTES]
        start = self._clock()
        small = self._pack(sample)
        seconds = ROUND_TRIP_FACTOR * (self._clock() - start)
        if seconds * bandwidth >= len(sample) - len(small):
            return None
        whole = small if len(sample) == len(data) else self._pack(data)
        return whole if len(whole) < len(data) else None

    def unpacked(self, data: Any, nbytes: int) -> bytes:
        """The `nbytes` bytes that were compressed. Raises `ProtocolError` if it is anything else."""
        try:
            found = self._unpack(data, nbytes)
        except Exception as error:  # noqa: BLE001 — whatever the compressor raises for bytes that are none of its own
            raise ProtocolError(f"a packed piece cannot be read: {error}") from None
        if len(found) != nbytes:
            raise ProtocolError(f"a packed piece has {len(found)} bytes, not {nbytes}")
        return found


def packer() -> Packer | None:
    """A packer with LZ4; None if that is not installed."""
    try:
        from lz4.block import compress, decompress
    except ImportError:
        return None
    return Packer(
        lambda data: bytes(compress(data, store_size=False)),
        lambda data, nbytes: bytes(decompress(data, uncompressed_size=nbytes)),
    )
