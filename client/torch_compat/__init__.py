"""Names that PyTorch programs use and GT has in another form: older linear algebra, native functions, queries.

May import `functional`, `ops` and `tensor`.
"""
