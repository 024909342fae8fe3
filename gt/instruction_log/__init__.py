"""The instruction log: what a client told a service, as text that people read and `gt replay` runs again.

May import `gt.ir` and `gt.wire`.
"""
