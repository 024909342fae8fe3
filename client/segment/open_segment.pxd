# What `make native` compiles `open_segment.py` with: the fields and the calls of the path of every instruction.

from gt.client.segment.signature cimport Signature
from gt.client.segment.value cimport TensorValue

cdef class OpenSegment:
    cdef public object session
    cdef public long long puts
    cdef public long long base
    cdef public Py_ssize_t length
    cdef public object periods
    cdef public object early
    cdef public list dead
    cdef public list record
    cdef public dict inputs
    cdef public list foreign
    cdef public list scalars
    cdef public Py_ssize_t many
    cdef public list values
    cdef public unsigned long thread
    cdef public object lock
    cdef public bint busy
    cdef public bint claimed
    cdef public object capture

    cpdef TensorValue emit(self, Signature signature, object operands)
    cpdef TensorValue emit_one(self, Signature signature, TensorValue a, tuple numbers=*)
    cpdef TensorValue emit_two(self, Signature signature, TensorValue a, TensorValue b)
