"""Policies of pacing, tried in virtual time: programs that are made or were recorded, on a service whose pacer is the real one.

Pure: no clock, file or process in here, and nothing of the dispatcher but `dispatcher/pacing`.
"""
