"""Compression of pieces, without loss, where the link to their reader is so slow that it saves time.

Data says by itself whether it is worth it: a sample is packed first, and the rest only if the sample took less time than
its saved bytes would have taken on the link. Weights and activations hardly get smaller, and cost one sample; masks,
one-hot rows, sparse gradients and tokens do. LZ4 is an extra (`pip install 'gt-tensor[compress]'`); who lacks it gets and
sends everything as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gt.errors import ProtocolError

LEAST: Final = 4 << 10
"""Bytes below which nothing is packed: a message costs as much."""
SAMPLE: Final = 64 << 10
UNPACKING: Final = 1.5
"""What packing and unpacking take together, by what packing takes."""


class Packer:
    """Packs and unpacks. `pack(data)` and `unpack(data, nbytes)` are the compressor's; `clock` gives seconds."""

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
        """The bytes in fewer, when sending those over a link of so many bytes a second is sooner; else None."""
        if len(data) < LEAST:
            return None
        middle = max(0, (len(data) - SAMPLE) // 2)
        sample = data[middle : middle + SAMPLE]
        start = self._clock()
        small = self._pack(sample)
        seconds = UNPACKING * (self._clock() - start)
        if seconds * bandwidth >= len(sample) - len(small):
            return None
        whole = small if len(sample) == len(data) else self._pack(data)
        return whole if len(whole) < len(data) else None

    def unpacked(self, data: Any, nbytes: int) -> bytes:
        """What was packed, so many bytes. Raises `ProtocolError` when it is something else."""
        try:
            found = self._unpack(data, nbytes)
        except Exception as error:  # noqa: BLE001 — whatever the compressor raises for bytes that are none of its own
            raise ProtocolError(f"a packed piece cannot be read: {error}") from None
        if len(found) != nbytes:
            raise ProtocolError(f"a packed piece has {len(found)} bytes, not {nbytes}")
        return found


def packer() -> Packer | None:
    """A packer by LZ4; None where that is not installed."""
    try:
        from lz4.block import compress, decompress
    except ImportError:
        return None
    return Packer(
        lambda data: bytes(compress(data, store_size=False)),
        lambda data, nbytes: bytes(decompress(data, uncompressed_size=nbytes)),
    )
