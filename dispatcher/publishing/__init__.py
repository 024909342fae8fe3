"""Published tensors at the dispatcher: checks of what clients publish and read, and which workers keep a version in memory.

Pure checks and records. The files are the workers'; `handlers/snapshots.py` tells them what to do.
"""
