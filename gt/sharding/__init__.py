"""Placements, partition arithmetic, and the sharding config.

May import `gt.errors` only.
"""
