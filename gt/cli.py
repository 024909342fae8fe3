"""The command line's entry, which loads nothing by itself; the commands are in `gt/commands`."""

from __future__ import annotations

import signal


def main() -> None:
    """The console entry. Ctrl-C while the commands load ends it as the system ends any program, without a word."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as in the background
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gt.commands.app import app

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
