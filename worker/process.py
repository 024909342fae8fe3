"""The worker's process: its command line, signals, and whether it starts again."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import time

from gt.daemon.descriptors import raise_descriptor_limit
from gt.daemon.host import (
    CONNECT_TIMEOUT,
    is_orphaned,
    start_timeout,
)
from gt.daemon.logs import LOG_FORMATS, DaemonLog
from gt.daemon.registry import find_marks
from gt.errors import GTError
from gt.op_packages.loading import load_for_daemon
from gt.wire import addresses
from gt.worker.device.heap import keep_freed_arrays
from gt.worker.lifecycle import restart

from .shell import WorkerShell

log = logging.getLogger("gt.worker")


def main(arguments: list[str] | None = None) -> int:
    """Run a worker until SIGINT, SIGTERM, or the end of its dispatcher or starter. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gt worker", description="Run a worker.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--device", help="cpu, cuda:0, … (default: the first GPU, or the CPU)")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=os.environ.get("GT_LOG_FORMAT", "text"))
    parser.add_argument("--listen", help="where other workers reach it (default: a Unix socket)")
    parser.add_argument("--marks", help="the folder of marks, the same for all workers")
    parser.add_argument("--spare", action="store_true", help="wait until another worker is lost")
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    said = parser.parse_args(arguments)
    return serve(
        said.address, device=said.device, log_level=said.log_level, watch=said.watch, folder=said.folder,
        log_format=said.log_format, spare=said.spare, listen=said.listen, marks=said.marks,
    )  # fmt: skip


def serve(
    address: str,
    *,
    device: str | None = None,
    log_level: str = "info",
    watch: int | None = None,
    folder: str | None = None,
    listen: str | None = None,
    announce: str | None = None,
    log_format: str = "text",
    marks: str | None = None,
    spare: bool = False,
    supervised: bool = False,
) -> int:
    """Runs a worker of the dispatcher at `address`. Returns the exit status. `watch` is a descriptor whose end of file
    means: stop.

    Other workers reach it at `announce`, which leads to where it listens. `marks` is a folder for the files of marks, the same
    for all workers of the service; by default it is in `folder`, and without that one it is that of a dispatcher of this user on
    this machine, if that has one. A `spare` waits until another worker is lost. `supervised`: another one is started when this
    one ends, also without `watch`.
    """
    logs = DaemonLog("worker", level=log_level, form=log_format, folder=folder)
    keep_freed_arrays()
    load_for_daemon(log)
    try:
        raise_descriptor_limit()
        patience = CONNECT_TIMEOUT if watch is None else start_timeout()  # it may have been started with its dispatcher
        dispatcher = restart.moved(address)[0]
        addresses.await_listener(dispatcher, patience, lambda: not is_orphaned(watch))
        if marks is None and folder is None:
            marks = find_marks(dispatcher)
        shell = WorkerShell(
            address, device, watch=watch, folder=folder, listen=listen, announce=announce, logs=logs, marks=marks,
            spare=spare, supervised=supervised,
        )  # fmt: skip
    except GTError as error:
        if is_orphaned(watch):  # whoever started it ended before it was up, and took the folder along: that is no error
            return 0
        log.error("%s", error)
        return 1
    ends = [signal.SIGTERM, signal.SIGINT]
    if watch is None and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # no nohup(1): the terminal is closed
        ends.append(signal.SIGHUP)
    for number in ends:
        signal.signal(number, shell.stop)
    began = time.monotonic()
    try:
        status = shell.run()
    except Exception as error:  # noqa: BLE001 — whatever it is, others are told
        status = shell.fail(error)
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_IGN)  # once is enough: the rest of this is the orderly end
        shell.close()
        if signal.SIGHUP in ends:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what is ignored stays so in a program that is loaded anew
        if folder is not None and shell.orphaned:
            shutil.rmtree(folder, ignore_errors=True)
    if shell.rejoins:
        restart.rejoin(watch, shell.address, shell.search.service, shell.search.epoch)
    if (
        shell.failed
        and restart.restart_process(restart.restart_count(time.monotonic() - began), watch)
        and folder is not None
    ):
        shutil.rmtree(folder, ignore_errors=True)
    return status
