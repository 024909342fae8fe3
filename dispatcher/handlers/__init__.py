"""What the dispatcher does with each message: queues, runs, puts, fetches, marks, peers that come and go.

May import `session_meshes`, `session_plans`, `jobs`, `state`, `telemetry`, `planner` and `cost`. `dispatcher/core.py` calls it.
"""
