"""What operators order through a monitor, who may, and the records of it for the audit log.

Part of the core: no socket, clock or file. May import the handlers, whose work most orders are.
"""
