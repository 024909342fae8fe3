"""A bare ZeroMQ echo through a middleman's process in the rows of `run.py`: four hops, as the fetch of one element has."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import zmq
from peers import Contender, serve

COUNT = 50
BYTES = 32


def middleman(front: str, back: str) -> None:
    """Pass on what comes from either side."""
    context = zmq.Context()
    client, echo = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    client.bind(front)
    echo.bind(back)
    there = echo.recv_multipart()[0]
    poller = zmq.Poller()
    poller.register(client, zmq.POLLIN)
    poller.register(echo, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if client in ready:
            echo.send_multipart([there, *client.recv_multipart()])
        if echo in ready:
            client.send_multipart(echo.recv_multipart()[1:])


def answer(back: str) -> None:
    """Send back what comes."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(back)
    socket.send(b"ready")
    while True:
        socket.send_multipart(socket.recv_multipart())


def main() -> None:
    """Start the other two processes, and take turns."""
    with tempfile.TemporaryDirectory() as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        processes = [subprocess.Popen([sys.executable, __file__, *way]) for way in ((front, back), (back,))]
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(front)

        def echo() -> None:
            for _ in range(COUNT):
                socket.send(b"x" * BYTES)
                socket.recv()

        try:
            serve({"round_trip": lambda: [Contender("ZeroMQ echo", "GT", echo, COUNT)]})
        finally:
            socket.close(linger=0)
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    ways = sys.argv[1:]
    if len(ways) == 2:
        middleman(*ways)
    elif ways:
        answer(*ways)
    else:
        main()
