"""The tensor: a handle on a value of the workers, how its instructions are emitted, the tape, and views.

May import `session` and `segment`. Knows no operation: `gt.client.composition` gives tensors their methods, and the tape its
gradient rules.
"""
