"""The kernels of a worker that computes with PyTorch: which op is computed how, and those by PyTorch's own functions.

Most ops have the one kernel of `worker/op_table/`, over PyTorch's arrays. Loaded only by a worker on a device 'torch:…'.
"""
