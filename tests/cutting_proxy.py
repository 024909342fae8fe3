"""A TCP proxy whose connections the test cuts and lets heal: a bad network between two processes."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Forwards what comes at `address` to the same kind of address elsewhere."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = threading.Event()
        self._open.set()
        self.cut_every = 0
        """After so many bytes in all, all connections are cut, in the middle of what passes; 0: never."""
        self._passed = 0
        self.connections = 0
        """How many were made so far."""
        self._stalled: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._open.is_set():
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._pairs.append((near, far))
                    self.connections += 1
                    self._pairs = [pair for pair in self._pairs if pair[0].fileno() >= 0]
                threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
        back.start()
        self._forward(near, far)
        back.join()
        near.close()
        far.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass bytes on until either end is closed, then close both."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_due(len(data)):
                    self.cut()
                    break
                if source not in self._stalled:
                    sink.sendall(data)
        for each in (source, sink):
            _shut(each)

    def _is_due(self, nbytes: int) -> bool:
        """Whether with so many bytes more it is time for a cut."""
        with self._lock:
            self._passed += nbytes
            due = 0 < self.cut_every < self._passed
            if due:
                self._passed = 0
        return due

    def cut(self, *, stay: bool = False) -> None:
        """Break all connections: what is on its way is lost. With `stay` no other is made until `heal`."""
        if stay:
            self._open.clear()
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                _shut(each)

    def stall(self) -> None:
        """Let nothing pass on the connections that there are, and tell nobody."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._stalled.update(*pairs)

    def heal(self) -> None:
        """Let connections be made again."""
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
