"""What a tensor can do: methods, operators, in-place forms, indexing, `out=`, printing, other libraries' protocols.

May import everything below it; `gt.client.composition` binds it to the class `Tensor`.
"""
