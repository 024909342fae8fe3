"""Builds the documentation site: `make docs`.

Pages are the Markdown files of the repository, as they are. What is made from the sources (the reference, the commands) is
added in a folder of build/, from which Zensical makes HTML. Nothing here is installed with GT.
"""
