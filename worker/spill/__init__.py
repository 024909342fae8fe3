"""Where buffers go that have no room in memory, and what memory is held for whom.

May import `device`.
"""
