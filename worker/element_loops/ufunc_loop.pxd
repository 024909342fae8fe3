# The inner loop of a NumPy function for given dtypes, and an array's memory, by NumPy's public C structures.

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
    /* `booleans`: bits that say which operands are booleans; all others are of float32 */
    static gt_loop gt_typed_loop(PyObject *function, int booleans, void **data) {
        PyUFuncObject *ufunc = (PyUFuncObject *)function;
        for (int at = 0; at < ufunc->ntypes; at++) {
            int same = 1;
            for (int operand = 0; operand < ufunc->nargs; operand++) {
                int wanted = booleans >> operand & 1 ? NPY_BOOL : NPY_FLOAT;
                same &= ufunc->types[at * ufunc->nargs + operand] == wanted;
            }
            if (same) {
                *data = ufunc->data ? ((void **)ufunc->data)[at] : NULL;
                return (gt_loop)ufunc->functions[at];
            }
        }
        return NULL;
    }
    static gt_loop gt_float32_loop(PyObject *function, void **data) { return gt_typed_loop(function, 0, data); }
    /* 0 where the elements are not one stretch, 1 row by row, 2 column by column, 3 both */
    static int gt_order(PyObject *array) {
        int flags = PyArray_FLAGS((PyArrayObject *)array);
        if (!(flags & NPY_ARRAY_ALIGNED)) return 0;
        return !!(flags & NPY_ARRAY_C_CONTIGUOUS) | !!(flags & NPY_ARRAY_F_CONTIGUOUS) << 1;
    }
    static char *gt_memory(PyObject *array) { return PyArray_BYTES((PyArrayObject *)array); }
    """
    Loop float32_loop "gt_float32_loop"(object function, void **data)
    Loop typed_loop "gt_typed_loop"(object function, int booleans, void **data)
    int order_of "gt_order"(object array) noexcept
    char *memory_of "gt_memory"(object array) noexcept
