"""Data sets, samplers, loaders, and batches that are put before the program asks for them.

May import `tensor_api` and everything below it.
"""
