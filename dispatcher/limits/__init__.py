"""What an operator grants each principal: the file of limits, the queue of sessions, and the rate of instructions.

Pure but for the reading of the file. May import the config's YAML reader, and nothing of the dispatcher.
"""
