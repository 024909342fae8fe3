"""The dispatcher's process: its command line, signals, the lock of its folder, and its exit status."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from gt.daemon.descriptors import raise_descriptor_limit
from gt.daemon.garbage import OldGarbage, leave_old_garbage
from gt.daemon.host import environment_number, is_orphaned
from gt.daemon.logs import LOG_FORMATS, DaemonLog
from gt.daemon.mark_folder import mark_folder
from gt.daemon.restart_policy import HAND_OVER_STATUS
from gt.daemon.service_folder import folder_for_group
from gt.errors import GTError
from gt.instruction_log.file import DEFAULT_PART_BYTES, InstructionFile
from gt.op_packages.loading import load_for_daemon

from .number_file import FolderInUse, lock_folder
from .pacing.learned_policy import SERVICE_POLICIES
from .shell import DispatcherShell
from .standby import TakenOver, stand_by
from .table_memory import use_table_memory_ahead

log = logging.getLogger("gt.dispatcher")


def _locked(folder: Path, *, standby: bool) -> int:
    """The lock of a folder of marks; on `standby`, once the dispatcher that has it has ended. Raises `FolderInUse`."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        if not standby:
            raise
    log.info("standing by: a dispatcher has %s", folder)
    lock = lock_folder(folder, wait=True)
    log.warning("the dispatcher before has ended: this one takes its place")
    return lock


def main(arguments: list[str] | None = None) -> int:
    """Run a dispatcher until SIGINT, SIGTERM, or the end of the process that started it; returns the exit status, 75 if the next
    one is to go on with its sessions (`gt restart`).

    SIGHUP makes it read its config again.
    """
    parser = argparse.ArgumentParser(prog="gt dispatcher", description="Run a dispatcher.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--config")
    parser.add_argument("--workers", type=int, default=1, help="how many must join before the first tensor is placed")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=os.environ.get("GT_LOG_FORMAT", "text"))
    parser.add_argument("--instruction-log", help="log what all clients do to this file")
    parser.add_argument("--with-data", action="store_true", help="and keep the values of small puts beside it")
    parser.add_argument("--insecure", action="store_true", help="need no keys on TCP (loopback alone)")
    parser.add_argument("--group", help="let the members of this group of users run programs too (ipc alone)")
    parser.add_argument("--limits", help="what each user or key is granted (YAML); read again when it changes")
    parser.add_argument("--policy", choices=SERVICE_POLICIES, default=SERVICE_POLICIES[0], help="whose plans go first")
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--hand-over", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--accounts", help="a folder for files of what was ordered and used, by whom")
    parser.add_argument(
        "--marks", help="a folder for the state of sessions, which the next dispatcher with it goes on with"
    )
    options = parser.parse_args(arguments)
    return serve(
        options.address, config=options.config, workers=options.workers, log_level=options.log_level,
        watch=options.watch, folder=options.folder, instruction_log=options.instruction_log, with_data=options.with_data,
        log_format=options.log_format, insecure=options.insecure, group=options.group,
        private=options.private, marks=options.marks, accounts=options.accounts, limits=options.limits,
        policy=options.policy, hand_over=options.hand_over,
    )  # fmt: skip


def serve(
    address: str, *, config: str | None = None, workers: int = 1, log_level: str = "info", watch: int | None = None,
    folder: str | None = None, bulk: str | None = None, instruction_log: str | None = None, with_data: bool = False,
    log_format: str = "text", listening: Callable[[str], object] | None = None, insecure: bool = False,
    group: str | None = None, private: bool = False, marks: str | None = None, standby: bool = False,
    primary: str | None = None, lease: float | None = None, accounts: str | None = None, limits: str | None = None,
    policy: str = SERVICE_POLICIES[0], supervised: bool = False, hand_over: bool = False,
) -> int:  # fmt: skip
    """Run a dispatcher at `address`, with large data at `bulk`; returns the exit status.

    It stops when the descriptor `watch` reaches its end of file; with `hand_over` so that the next one, which somebody
    starts, goes on with its sessions. What clients send is logged to the file `instruction_log`.
    `listening` is called with the address that was bound. On TCP, peers need keys unless it is `insecure`; on a Unix socket, the
    members of `group` are let in. A `private` service is for the program that started it. `marks` is a folder for what is needed
    to go on with sessions after a dispatcher has ended; the next one that is given it does so. By default it is in `folder`, and
    without that one sessions end with their dispatcher. On `standby` it waits until the dispatcher with this folder has ended.
    With a `primary` it copies what that dispatcher, which has another folder, writes there, and takes its place when it is told
    to; or, with a `lease`, when it has heard nothing of it for so many seconds, nor have most of its workers. `accounts` is a
    folder for files of what was ordered and used, by whom (`account_files.py`), `limits` a file that says what each principal is
    granted (`dispatcher/limits`), `policy` one of `SERVICE_POLICIES`. `supervised`: another dispatcher is started when this one
    ends, also without `watch`.
    """
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: early.append(number))  # which would end it before it is up
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # whoever started it may have blocked it until now
    logs = DaemonLog("dispatcher", level=log_level, form=log_format, folder=folder)
    load_for_daemon(log)
    kept = Path(marks) if marks is not None else None if folder is None else mark_folder(Path(folder))
    lock = -1
    taken: TakenOver | None = None
    try:
        raise_descriptor_limit()
        if marks is not None:  # that of a service whose own folder is gone is not to be made
            Path(marks).mkdir(mode=0o700, parents=True, exist_ok=True)
        if kept is not None:
            lock = _locked(kept, standby=standby)  # held until this process ends
            found = stand_by(primary, address, bulk, kept, lease, insecure=insecure)
            if isinstance(found, str):
                return 0  # it was stopped
            taken = found
        size = environment_number("GT_INSTRUCTION_LOG_SIZE", DEFAULT_PART_BYTES)
        file = InstructionFile(instruction_log, data=with_data, size=size) if instruction_log else None
        shell = DispatcherShell(
            address,
            config=config,
            workers=workers,
            watch=watch,
            bulk=bulk,
            instruction_log=file,
            logs=logs,
            insecure=insecure,
            group=group,
            private=private,
            marks=kept,
            taken=taken,
            accounts=None if accounts is None else Path(accounts),
            limits=limits,
            policy=policy,
            hand_over=hand_over,
            supervised=supervised,
        )
    except (GTError, OSError) as error:
        if is_orphaned(watch):  # as a worker's
            return 0
        log.error("%s", error)
        return 1
    signal.signal(signal.SIGTERM, shell.stop)
    signal.signal(signal.SIGINT, shell.stop)
    signal.signal(signal.SIGHUP, shell.reread)
    if early:
        shell.reread()  # the file may have changed since it was read
    if listening is not None:
        listening(shell.address)
    status = 0
    use_table_memory_ahead()
    leave_old_garbage()
    shell.garbage = OldGarbage()
    try:
        shell.run()
        status = HAND_OVER_STATUS if shell.core.hand_overs.ends else 0
    except Exception as error:
        log.exception("a bug in GT ends the dispatcher; please report it")
        shell.farewell(
            f"a bug in GT ended the dispatcher ({type(error).__name__}: {error}); please report it, with its log"
        )
        status = 1
    finally:
        status = status or int(shell.replaced)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # once is enough: the rest of this is the orderly end
        if is_orphaned(watch):  # else whoever started it may start it again
            for each in (folder, folder_for_group(address)):
                if each is not None:
                    shutil.rmtree(each, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
    return status
