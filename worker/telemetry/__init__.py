"""What a worker tells while somebody watches, and names for profilers.

May import `program`.
"""
