"""PyTorch's import paths: `gt.nn.modules.linear` and the like, without a file for each.

`table` lists each path and where its names are defined; `finder` makes the modules when they are first imported; `stubs` writes
them as `.pyi` files for type checkers and editors. `modules` holds what is defined for such a path alone.
"""
