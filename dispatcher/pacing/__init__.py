"""The pacing of workers' time: which session's plan is released to its workers next, and when.

Pure state, on which time and durations are arguments; nothing of the dispatcher is known here. May import only its
sums of what was used (`usage`).
"""
