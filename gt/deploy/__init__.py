"""Files that start a service on the engines that a site already has: a function for each target gives them by name.

Texts are in `templates`, a folder for each target; `files.py` fills them in and writes them. It imports nothing of a service.
"""
