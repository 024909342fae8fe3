"""The compiled form of a few modules of the client, and loops of the worker. It is optional: where it is not built, sources and
NumPy's calls run.

`modules` lists them, `finder` imports the compiled ones where they were built from the sources that are there, `build` builds
them (`make native`, or a wheel with `GT_BUILD_NATIVE=1`). Imports nothing of `gt`.
"""
