"""The device: memory, streams, threads, cuBLAS, NVML, graph capture.

May import shared packages only.
"""
