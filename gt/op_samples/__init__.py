"""One instruction of every kind with operands, to try kernels and sharding rules on: in tests and in `gt conformance`.

No rule and no kernel may be in here.
"""
