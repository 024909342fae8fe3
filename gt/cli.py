"""The command line's entry, which loads nothing by itself; the commands are in `gt/commands`."""

from __future__ import annotations

import signal
import sys

from gt.daemon.garbage import garbage_later


def main() -> None:
    """The console entry. Ctrl-C while the commands load ends it as the system ends any program, without a word. SIGHUP to a
    dispatcher waits until there is one that follows it."""
    if sys.argv[1:2] == ["dispatcher"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it would end the process; `serve` unblocks it
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as in the background
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with garbage_later():
        from gt.commands.app import app

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
