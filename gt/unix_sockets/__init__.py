"""ZeroMQ's DEALER and ROUTER over Unix stream sockets, used by the thread that has something to say: `gt/wire/transport.py` takes
them between processes of one machine.

They speak ZeroMQ's protocol, so its own DEALER may connect to the router. But a message wakes one thread, its receiver, where
ZeroMQ, which has a thread of its own at either end, wakes three. The package may import nothing but bounds and errors.
"""
