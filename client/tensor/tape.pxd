# What `make native` compiles `tape.py` with: the fields of its classes, and how an instruction is recorded.

from gt.client.segment.signature cimport Signature
from gt.client.segment.value cimport TensorValue
from gt.client.tensor.tensor cimport TensorState

cdef class Leaf:
    cdef public TensorValue value
    cdef public object grad
    cdef public list hooks
    cdef public list after
    cdef public bint param
    cdef public bint rests

cdef class Vertex:
    cdef public object context
    cdef public tuple edges
    cdef public tuple wants
    cdef public list hooks
    cdef public object order

cdef class TapeNode(Vertex):
    cdef public Signature signature
    cdef public object saved
    cdef public object output
    cdef public bint create_graph

cpdef TapeNode record(Signature signature, object context, object operands, object values, TensorValue output)
