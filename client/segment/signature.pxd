# What `make native` compiles `signature.py` with: the fields of its classes.

cdef class Signature:
    cdef public str op
    cdef public object attributes
    cdef public tuple operands
    cdef public tuple results
    cdef public object result
    cdef public object tag
    cdef public object differentiable
    cdef public object backward
    cdef public dict saves
