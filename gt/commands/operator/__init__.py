"""The commands of operators: workers, sessions, keys, accounts and snapshots of a service, and files that start one elsewhere.

Each imports typer alone until it runs, and no command of `gt/commands` outside this folder.
"""
