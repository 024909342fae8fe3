"""Services as a program sees them: sessions, daemons as child processes, in-process services, inventory.

Above the rooms: may import client, dispatcher and worker, lazily.
"""
