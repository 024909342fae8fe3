# What `make native` compiles `value.py` with: the fields of its classes.

cimport cython

cdef class DeathNotice

@cython.freelist(512)
cdef class TensorValue:
    cdef public object owner
    cdef public long long id
    cdef public object spec
    cdef public DeathNotice notice
    cpdef watch(self)

@cython.freelist(64)
cdef class DeathNotice:
    cdef public object owner
    cdef public long long id
