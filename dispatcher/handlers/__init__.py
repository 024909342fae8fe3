"""What the dispatcher does with each message: queues, runs, puts, fetches, configs, peers that come and go.

May import `state`, `telemetry`, `planner` and `cost`. `dispatcher/core.py` calls it.
"""
