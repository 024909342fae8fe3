# What compiled modules (`make native`) call in C where the sources call Python's own functions: who is the caller, on which thread.
# A line that the compiler is not to see, because its name is declared here, ends with "not compiled".

cdef extern from *:
    """
    #include <pythread.h>
    #include <frameobject.h>

    static CYTHON_INLINE PyObject *gt_frame(int depth) {
        /* compiled functions have no frames: the innermost one is their caller's */
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        if (frame == NULL) {
            PyErr_SetString(PyExc_ValueError, "call stack is not deep enough");
            return NULL;
        }
        Py_INCREF(frame);
        return frame;
    }

    static CYTHON_INLINE PyObject *gt_context(PyObject *variable) {
        PyObject *value = NULL;
        if (PyContextVar_Get(variable, NULL, &value) == 0 && value == NULL) {
            PyErr_SetNone(PyExc_LookupError);
        }
        return value;
    }

    static CYTHON_INLINE PyObject *gt_new(PyObject *kind) {
        PyObject *nothing = PyTuple_New(0);
        PyObject *made = nothing == NULL ? NULL : ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, nothing, NULL);
        Py_XDECREF(nothing);
        return made;
    }

    static CYTHON_INLINE int gt_same(PyObject *now, PyObject *before) {
        Py_ssize_t size = PyList_GET_SIZE(now);
        return PyList_GET_SIZE(before) == size
            && memcmp(((PyListObject *)now)->ob_item, ((PyListObject *)before)->ob_item, size * sizeof(PyObject *)) == 0;
    }

    #define gt_code(frame) ((PyObject *)PyFrame_GetCode((PyFrameObject *)(frame)))
    #define gt_place(frame) PyFrame_GetLasti((PyFrameObject *)(frame))
    #define gt_address(object) ((Py_ssize_t)(object))
    """
    unsigned long _get_ident "PyThread_get_thread_ident"()
    object _getframe "gt_frame"(int)
    object _get_context "gt_context"(object)
    object _new "gt_new"(object)
    Py_ssize_t id "gt_address"(object)
    bint same_objects "gt_same"(list, list)
    object code_of_frame "gt_code"(object)
    int place_in_frame "gt_place"(object)
    ctypedef class types.FrameType [object PyObject, check_size ignore]:
        @property
        cdef inline object f_code(self):
            return code_of_frame(self)
        @property
        cdef inline int f_lasti(self):
            return place_in_frame(self)
