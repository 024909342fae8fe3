"""Segments: what a client gathers between two flushes, and what of it the dispatcher knows already.

Pure: no socket, clock, thread or environment. May import gt.ir, gt.wire and gt.errors, and nothing of the client.
"""
