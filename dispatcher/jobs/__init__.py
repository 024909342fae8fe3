"""How programs share the dispatcher's one thread, and its workers' compilers: jobs in turns, and who may have a plan compiled.

May import `state`.
"""
