"""`gt.compile`: a function is traced once for each signature and afterwards runs as one segment.

May import `nn`, `optim` and everything below them.
"""
