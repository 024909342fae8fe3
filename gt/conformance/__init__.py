"""`gt conformance`: checks ops against what GT relies on, on a given device: kernels against NumPy, shapes and dtypes, gradients
against finite differences, every sharding row by brute force, bits, operands without elements, and refusals.

`cases.py` has calls to try, `shards.py` runs one as workers would, `checks.py` has the checks, `report.py` what they found. A
case names its op as instructions do, and says nothing of packages: what runs it goes for any op and any backend.
May import what computes, plans and serves.
"""
