"""Ops that installed packages bring (entry points of the group `gt.ops`): how one is declared, and the registry of this process.

`definition.py` is the declaration that a package writes (`gt.ops.Op`), `letters.py` reads its sharding letters, `registry.py`
joins packages with the op table, `loading.py` finds what is installed, `offers.py` says what one process tells others of its ops.
No code travels: a segment names an op by package, name and version, and each process runs what is installed beside it.
May import `gt.ir`.
"""
