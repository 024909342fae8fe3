# What `make native` compiles `emission_context.py` with: the fields of its class.

cdef class Context:
    cdef public tuple signal
    cdef public str phase
    cdef public str site
    cdef public bint grad
    cdef public tuple backward
    cdef public object lower
    cdef public object hints
