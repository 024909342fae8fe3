# What `make native` compiles `value.py` with: the fields of its classes.

cimport cython

@cython.freelist(512)
cdef class TensorValue:
    cdef public object owner
    cdef public long long id
    cdef public object spec
    cdef public object notice

cdef class DeathNotice:
    cdef public object owner
    cdef public long long id
