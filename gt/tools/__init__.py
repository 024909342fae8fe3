"""What people use to understand a program or a machine: explain, search, replay, doctor.

May import `gt.service` and the rooms, lazily.
"""
