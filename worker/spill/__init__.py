"""Storage for buffers that do not fit into a worker's memory, and the account of who holds how much.

May import `device`.
"""
