"""PyTorch's tensors as what a worker computes with: arrays with NumPy's manners, their functions, their memory, their devices.

Only `worker/base/backend.py` imports this package, and only for a device 'torch:…'. It knows no op and no kernel.
"""
