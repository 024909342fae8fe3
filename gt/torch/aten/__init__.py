"""PyTorch's operators that GT has in another form, by family, as functions of GT tensors with the operators' arguments.

The modules import GT's public face, and nothing else of `gt.torch`. Other families are in `gt/torch/aten_functions.py`.
"""
