"""What crosses process boundaries: ZeroMQ sockets and the reliable streams over them, who may connect, bulk data, events.

`messages` has what is said, `shared_memory` what processes of one machine need not say. May import these, `gt.daemon`,
`gt.unix_sockets` and `gt.errors`.
"""
