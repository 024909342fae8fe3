"""All steps of an LSTM layer, and all steps back, of float32: the calls of `worker/kernels/recurrence.py` without NumPy's
overhead. A product and tanh are NumPy's own loops."""

import numpy as np

from libc.string cimport memcpy

from gt.worker.element_loops.ufunc_loop cimport Loop, float32_loop

cdef extern from *:
    """
    typedef float *__restrict gt_floats;
    typedef const float *__restrict gt_read;
    """
    ctypedef float *Floats "gt_floats"
    ctypedef const float *Read "gt_read"

cdef void *tanh_data = NULL
cdef void *matmul_data = NULL
cdef Loop tanh_loop = float32_loop(np.tanh, &tanh_data)
cdef Loop matmul_loop = float32_loop(np.matmul, &matmul_data)
if not isinstance(np.tanh, np.ufunc) or tanh_loop == NULL or matmul_loop == NULL:
    raise ImportError("this NumPy has no inner loops of tanh and matmul for float32")


cdef void tanh(const float *x, float *out, Py_ssize_t size) noexcept nogil:
    cdef char *args[2]
    cdef Py_ssize_t steps[2]
    args[0], args[1] = <char *>x, <char *>out
    steps[0], steps[1] = 4, 4
    tanh_loop(args, &size, steps, tanh_data)


cdef void halved(Floats x, Py_ssize_t size) noexcept nogil:
    """The logistic function, from tanh of half of what it is of."""
    cdef Py_ssize_t j
    for j in range(size):
        x[j] = x[j] * <float>0.5 + <float>0.5


cdef void plain(Floats x, Py_ssize_t size) noexcept nogil:
    """As NumPy's calls leave it: without negative zeros."""
    cdef Py_ssize_t j
    for j in range(size):
        x[j] = x[j] + <float>0


cdef void add_up(Read i, Read f, Read g, Read cell, Floats out, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(size):
        out[j] = f[j] * cell[j] + i[j] * g[j]


cdef void multiply(Read a, Read b, Floats out, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(size):
        out[j] = a[j] * b[j]


cdef void add(Floats x, Read y, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(size):
        x[j] = x[j] + y[j]


cdef void activate(
    float *a, float *kept, Py_ssize_t apart, const float *before, float *new, float *hidden, Py_ssize_t whole
) noexcept nogil:
    """One step from the sums of its gates `a`, which become these; `kept`: where each is copied to, so many elements `apart`."""
    cdef Py_ssize_t gate
    tanh(a, a, 4 * whole)
    halved(a, 2 * whole)
    plain(a + 2 * whole, whole)
    halved(a + 3 * whole, whole)
    if kept != NULL:
        for gate in range(4):
            memcpy(kept + gate * apart, a + gate * whole, 4 * whole)
    add_up(a, a + whole, a + 2 * whole, before, new, whole)
    tanh(new, a, whole)
    multiply(a + 3 * whole, a, hidden, whole)


def forward(float[:, :, :, :] out, const float[:, :, :] x, float[:, :, ::1] weight, float[:, ::1] both, float[:, :, ::1] gates):
    """Fills `out` [k, t + 1, n, h] from the first states in it: of each step i, f, g, o, c and h, or c and h. `x`: [t, n, i];
    `weight`: [4, h + i + 1, h], times the factors of gates; `both` [n, h + i + 1], whose last column is ones, and `gates` [4, n, h]
    are memory. Each [n, h] of `out` is one stretch."""
    cdef Py_ssize_t count = x.shape[0], rows = gates.shape[1], size = gates.shape[2]
    cdef Py_ssize_t inputs = x.shape[2], width = both.shape[1], whole = rows * size, t, n, j, last = out.shape[0] - 1
    cdef Py_ssize_t apart = out.strides[0] // 4
    cdef bint dense = x.strides[2] == 4
    cdef char *args[3]
    cdef Py_ssize_t dimensions[4]
    cdef Py_ssize_t steps[9]
    cdef float *a = &gates[0, 0, 0]
    cdef float *hidden
    dimensions[0], dimensions[1], dimensions[2], dimensions[3] = 4, rows, width, size
    steps[0], steps[1], steps[2] = 0, 4 * width * size, 4 * whole
    steps[3], steps[4], steps[5], steps[6], steps[7], steps[8] = 4 * width, 4, 4 * size, 4, 4 * size, 4
    with nogil:
        for t in range(count):
            hidden = &out[last, t, 0, 0]
            for n in range(rows):
                memcpy(&both[n, 0], hidden + n * size, 4 * size)
                if dense:
                    memcpy(&both[n, size], &x[t, n, 0], 4 * inputs)
                else:
                    for j in range(inputs):
                        both[n, size + j] = x[t, n, j]
            args[0], args[1], args[2] = <char *>&both[0, 0], <char *>&weight[0, 0, 0], <char *>a
            matmul_loop(args, dimensions, steps, matmul_data)
            activate(
                a, &out[0, t, 0, 0] if last == 5 else NULL, apart,
                &out[last - 1, t, 0, 0], &out[last - 1, t + 1, 0, 0], &out[last, t + 1, 0, 0], whole,
            )


def recall(float[:, :, :, :] out, const float[:, :, :, :] brought, float[:, :, ::1] weight, float[:, :, ::1] gates):
    """The same from what inputs bring to the gates, `brought` [t, 4, n, h]. `weight`: [4, h, h]. Each [n, h] of both is one stretch."""
    cdef Py_ssize_t count = brought.shape[0], rows = gates.shape[1], size = gates.shape[2]
    cdef Py_ssize_t whole = rows * size, t, gate, last = out.shape[0] - 1, apart = out.strides[0] // 4
    cdef char *args[3]
    cdef Py_ssize_t dimensions[4]
    cdef Py_ssize_t steps[9]
    cdef float *a = &gates[0, 0, 0]
    dimensions[0], dimensions[1], dimensions[2], dimensions[3] = 4, rows, size, size
    steps[0], steps[1], steps[2] = 0, 4 * size * size, 4 * whole
    steps[3], steps[4], steps[5], steps[6], steps[7], steps[8] = 4 * size, 4, 4 * size, 4, 4 * size, 4
    with nogil:
        for t in range(count):
            args[0], args[1], args[2] = <char *>&out[last, t, 0, 0], <char *>&weight[0, 0, 0], <char *>a
            matmul_loop(args, dimensions, steps, matmul_data)
            for gate in range(4):
                add(a + gate * whole, &brought[t, gate, 0, 0], whole)
            activate(
                a, &out[0, t, 0, 0] if last == 5 else NULL, apart,
                &out[last - 1, t, 0, 0], &out[last - 1, t + 1, 0, 0], &out[last, t + 1, 0, 0], whole,
            )


cdef void step_back(
    Read i, Read f, Read g, Read o, Read before, Read tanh, Read given, Read recalled,
    Floats of_i, Floats of_f, Floats of_g, Floats of_o, Floats cell, Py_ssize_t size,
) noexcept nogil:
    """One row: what is kept of it, the gradients of its states, and those of its gates."""
    cdef Py_ssize_t j
    cdef float gradient, inner
    cdef float one = 1
    for j in range(size):
        gradient = given[j] + recalled[j]
        inner = cell[j] + gradient * ((one - tanh[j] * tanh[j]) * o[j])
        of_i[j] = (one - i[j]) * i[j] * g[j] * inner
        of_f[j] = (one - f[j]) * f[j] * before[j] * inner
        of_g[j] = (one - g[j] * g[j]) * i[j] * inner
        of_o[j] = (one - o[j]) * o[j] * tanh[j] * gradient
        cell[j] = inner * f[j]


def backward(
    const float[:, :, :, :] kept, const float[:, :, :] given, const float[:, :] weight, float[:, :, :] gates,
    float[:, ::1] recalled, float[:, ::1] cell, float[:, ::1] part, bint states,
):
    """Fills `gates` [t, n, 4 h] with the gradients of what was added up for the gates. `kept`: [6, t + 1, n, h]; `given`: [t, n, h];
    `weight`: [4 h, h], by rows or columns; `recalled` and `cell` [n, h]: gradients of the last states, that become those of the
    first, of the hidden one only with `states`; `part` [n, h] is memory. The last two dimensions of arrays are one stretch."""
    cdef Py_ssize_t count = gates.shape[0], rows = cell.shape[0], size = cell.shape[1], t, n, at
    cdef char *args[3]
    cdef Py_ssize_t dimensions[4]
    cdef Py_ssize_t steps[9]
    cdef float *made
    dimensions[0], dimensions[1], dimensions[2], dimensions[3] = 1, rows, 4 * size, size
    steps[0], steps[1], steps[2] = 0, 0, 0
    steps[3], steps[4], steps[5], steps[6] = 16 * size, 4, weight.strides[0], weight.strides[1]
    steps[7], steps[8] = 4 * size, 4
    with nogil:
        for t in range(count - 1, -1, -1):
            made = &gates[t, 0, 0]
            tanh(&kept[4, t + 1, 0, 0], &part[0, 0], rows * size)
            for n in range(rows):
                at = 4 * n * size
                step_back(
                    &kept[0, t, n, 0], &kept[1, t, n, 0], &kept[2, t, n, 0], &kept[3, t, n, 0], &kept[4, t, n, 0],
                    &part[n, 0], &given[t, n, 0], &recalled[n, 0],
                    made + at, made + at + size, made + at + 2 * size, made + at + 3 * size, &cell[n, 0], size,
                )
            if t or states:
                args[0], args[1], args[2] = <char *>made, <char *>&weight[0, 0], <char *>&recalled[0, 0]
                matmul_loop(args, dimensions, steps, matmul_data)
