"""One instruction of every kind with operands, for whoever tries kernels or sharding rules out: tests, and `gt conformance`.

No rule and no kernel may be in here.
"""
