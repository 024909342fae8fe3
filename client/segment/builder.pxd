# What `make native` compiles `builder.py` with: the types of what it makes at a flush, and `shared` of `reference_counts.py` in C.

from gt.client.segment.open_segment cimport OpenSegment
from gt.client.segment.value cimport TensorValue

cdef extern from *:
    """
    static CYTHON_INLINE PyObject *gt_shared(PyObject *values) {
        Py_ssize_t size = PyList_GET_SIZE(values);
        PyObject *made = PyBytes_FromStringAndSize(NULL, size);
        if (made != NULL) {
            for (Py_ssize_t at = 0; at < size; at++) {
                PyBytes_AS_STRING(made)[at] = Py_REFCNT(PyList_GET_ITEM(values, at)) > 1;
            }
        }
        return made;
    }
    """
    bytes shared "gt_shared"(list)
