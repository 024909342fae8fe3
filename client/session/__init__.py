"""Sessions: one connection to a service, its links, and the values that are on their way in and out.

May import `segment` and the shared packages. Tensors are above it.
"""
