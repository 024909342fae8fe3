"""What neural networks compute: activations, losses, convolutions, attention, normalisation, pooling.

May import `ops`, `ops.linalg` and `tensor`.
"""
