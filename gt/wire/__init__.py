"""What crosses process boundaries: messages, ZeroMQ sockets, bulk data, shared memory, events.

May import `gt.daemon.host`'s facts and `gt.errors`.
"""
