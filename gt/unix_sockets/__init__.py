"""Messages over Unix stream sockets, between processes of one machine: what `gt/wire/transport.py` uses in place of ZeroMQ there.

It may import nothing but bounds and errors. The thread that uses a socket sends and receives by itself, so a message wakes one
thread, its receiver, where ZeroMQ wakes three.
"""
