"""Snapshots as files: part files that workers write, the manifest that makes a snapshot whole, and the folders of both.

May import `ir` and `sharding`. No socket, thread or session is used here, so commands read the same files without a service.
"""
