"""`python -m gt.dispatcher` runs a dispatcher (`process.py`), which is loaded without looking for garbage."""

from __future__ import annotations

from gt.daemon.garbage import garbage_later

if __name__ == "__main__":
    with garbage_later():
        from .process import main
    raise SystemExit(main())
