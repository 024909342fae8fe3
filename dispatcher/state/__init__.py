"""The dispatcher's records: clients, workers, tensors, plans, and what is in flight.

May import `cost` and `planner`. Decides nothing.
"""
