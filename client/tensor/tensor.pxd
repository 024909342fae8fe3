# What `make native` compiles `tensor.py` with: the fields of a tensor.

from gt.client.segment.value cimport TensorValue

cdef class TensorState:
    cdef object __weakref__
    cdef public TensorValue _value
    cdef public object _edge
    cdef public object _view
    cdef public long long _version
    cdef public object _rest
    cdef public object _view_state
