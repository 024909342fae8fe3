"""Gradient rules: for each op how the gradient of its result becomes those of its operands.

May import `functional`, `ops` and `tensor`, since gradients are composed of public functions.
"""
