"""What kernels and programs share: the array module, a kernel's call, and the events of the core.

May import `device` and `nccl`.
"""
