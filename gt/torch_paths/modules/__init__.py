"""What is defined for one of PyTorch's import paths alone, such as `gt.cuda` and `gt.hub`; the table of paths says for which.

May import the public API lazily, like all of `gt.torch_paths`.
"""
