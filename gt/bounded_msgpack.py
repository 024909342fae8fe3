"""Reads msgpack that a peer made up: what is allocated for it is a small multiple of its bytes, whatever they say.

Left to itself, msgpack believes the length that an array claims before its items have come, and makes an object of each
byte. So what is longer than `TRUSTED_BYTES` is read twice: first its structure, for which nothing is allocated, then its
values, of which not every few bytes may be a container.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from gt.errors import ProtocolError

TRUSTED_BYTES: Final = 2048
"""Bytes of what is so short that it is read at once, as nearly all messages are: at worst some megabytes for a moment."""
BYTES_PER_CONTAINER: Final = 4
"""The least bytes for each list or mapping, on average, in what is longer."""
FEED_BYTES: Final = 4096
"""Bytes of a sequence that are read ahead."""

Extension = Callable[[int, bytes], object]


def no_extensions(code: int, data: bytes) -> object:
    """Refuse an extension type. Raises `ProtocolError`."""
    raise ProtocolError(f"there is no extension {code} of {len(data)} bytes")


def unpack_bounded(frame: Any, extension: Extension = no_extensions, *, any_keys: bool = False) -> Any:
    """The value that a frame holds. Raises `ProtocolError` for anything else."""
    if len(frame) <= TRUSTED_BYTES:
        return _unpack(frame, extension, any_keys)
    structure = msgpack.Unpacker(max_buffer_size=len(frame))
    structure.feed(frame)
    try:
        structure.skip()
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None
    if structure.tell() != len(frame):
        raise ProtocolError("not msgpack: there are bytes behind it")
    return _unpack(frame, extension, any_keys, _ContainerCount(len(frame) // BYTES_PER_CONTAINER))


class _ContainerCount:
    """Counts the lists and mappings of one value, and refuses those beyond `most`."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, container: Any) -> Any:
        self.most -= 1
        if self.most < 0:
            raise ProtocolError("too many lists or mappings for so few bytes")
        return container


def _unpack(frame: Any, extension: Extension, any_keys: bool, count: Callable[[Any], Any] | None = None) -> Any:
    try:
        return msgpack.unpackb(
            frame, strict_map_key=not any_keys, ext_hook=extension, list_hook=count, object_hook=count, max_ext_len=16
        )
    except ProtocolError:
        raise
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None


class BoundedSequence:
    """Reads a list of lists item by item, so that nothing is allocated for what lies beyond the item that is malformed."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)
        self.fed = 0
        self.structure = msgpack.Unpacker(max_buffer_size=max(1, len(self.data)))

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return int(self.structure.tell())

    def enter(self, most: int, what: str) -> int:
        """The number of items of the list that begins here. Raises `ProtocolError` if it is more than `most`, or no list."""
        count: int = self._advance(self.structure.read_array_header, 8, f"{what} are a list")
        if count > most:
            raise ProtocolError(f"{what}: at most {most:,}, not {count:,}")
        return count

    def item(self, most: int, what: str) -> Any:
        """The value that begins here. Raises `ProtocolError` if it has more than `most` bytes."""
        start = self.at
        self._advance(self.structure.skip, most, f"{what} has at most {most:,} bytes")
        end = self.at
        if end - start > most:
            raise ProtocolError(f"{what} has at most {most:,} bytes, not {end - start:,}")
        return unpack_bounded(self.data[start:end], any_keys=True)

    def end(self) -> None:
        """Raise `ProtocolError` unless nothing is left."""
        if self.at != len(self.data):
            raise ProtocolError("there are bytes behind it")

    def _advance(self, step: Callable[[], Any], most: int, what: str) -> Any:
        start = self.at
        while True:
            try:
                return step()
            except msgpack.OutOfData:
                if self.fed == len(self.data):
                    raise ProtocolError("it ends too soon") from None
                if self.fed - start >= most + FEED_BYTES:
                    raise ProtocolError(what) from None
            except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
                raise ProtocolError(f"{what}: not msgpack: {type(error).__name__}") from None
            self.structure.feed(self.data[self.fed : self.fed + FEED_BYTES])
            self.fed = min(len(self.data), self.fed + FEED_BYTES)
