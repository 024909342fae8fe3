"""What all kernels and programs stand on: the array module, and what a kernel is told of its call.

May import `device` and `nccl`.
"""
