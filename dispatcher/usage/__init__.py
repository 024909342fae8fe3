"""What sessions use of the service: the time of devices, bytes, instructions and energy, by principal and top-level signal.

Pure sums, bounded whatever programs do; nothing of the dispatcher is known here. May import nothing of it.
"""
