# What `make native` compiles `emission.py` with: the types of what it reads, and the fields of its class.

from gt.client.segment.open_segment cimport OpenSegment
from gt.client.segment.signature cimport Signature
from gt.client.segment.value cimport TensorValue
from gt.client.tensor.emission_context cimport Context
from gt.client.tensor.native_calls cimport _get_context, _get_ident, _getframe, _new, FrameType, id
from gt.client.tensor.tape cimport record as _record
from gt.client.tensor.tensor cimport TensorState

cdef class LastSignature:
    cdef public object context
    cdef public object first
    cdef public object second
    cdef public Signature signature

cpdef Signature _find(tuple key, str op, tuple attributes, Context context, FrameType frame)
