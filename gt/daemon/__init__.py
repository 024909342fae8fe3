"""What every daemon needs: facts about the host, logs, the registry of services, restarts.

May import `gt.errors` only.
"""
