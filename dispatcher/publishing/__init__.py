"""What the dispatcher knows of tensors that are published: what clients say of them, and who keeps them in memory.

Pure checks and records. The files are the workers'; `handlers/snapshots.py` tells them what to do.
"""
