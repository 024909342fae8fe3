"""What the dispatcher tells watchers: recorded events, and who receives them.

May import `state` and what is below it.
"""
