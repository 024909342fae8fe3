"""Cost model: what computing, moving and holding takes, in seconds and bytes.

May import shared packages only.
"""
