# The inner loop of a NumPy function for float32, by its public C structure.

ctypedef void (*Loop)(char **args, const Py_ssize_t *dimensions, const Py_ssize_t *steps, void *data) noexcept nogil

cdef extern from *:
    """
    #define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
    #define PY_UFUNC_UNIQUE_SYMBOL gt_element_loops
    #define NO_IMPORT_UFUNC
    #define NO_IMPORT_ARRAY
    #include <numpy/arrayobject.h>
    #include <numpy/ufuncobject.h>
    typedef void (*gt_loop)(char **, const Py_ssize_t *, const Py_ssize_t *, void *);
    static gt_loop gt_float32_loop(PyObject *function, void **data) {
        PyUFuncObject *ufunc = (PyUFuncObject *)function;
        for (int at = 0; at < ufunc->ntypes; at++) {
            int same = 1;
            for (int operand = 0; operand < ufunc->nargs; operand++) {
                same &= ufunc->types[at * ufunc->nargs + operand] == NPY_FLOAT;
            }
            if (same) {
                *data = ufunc->data ? ((void **)ufunc->data)[at] : NULL;
                return (gt_loop)ufunc->functions[at];
            }
        }
        return NULL;
    }
    """
    Loop float32_loop "gt_float32_loop"(object function, void **data)
