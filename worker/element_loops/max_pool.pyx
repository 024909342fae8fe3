"""The gradient of a max pooling of float32 whose windows lie side by side in the last two dimensions and cover them."""

from libc.stdint cimport int32_t

cdef extern from *:
    """
    typedef int32_t *__restrict gt_bits;
    typedef const int32_t *__restrict gt_read_bits;
    typedef const float *__restrict gt_read;
    """
    ctypedef int32_t *Bits "gt_bits"
    ctypedef const int32_t *ReadBits "gt_read_bits"
    ctypedef const float *Read "gt_read"


cdef void pair(Read above, Read below, Read largest, ReadBits given, Bits first, Bits second, Py_ssize_t count) noexcept nogil:
    """A row of windows of 2×2: each gradient goes to the first element that is the largest or no number, else to the last."""
    cdef Py_ssize_t j
    cdef int32_t left, taken
    cdef float top
    for j in range(count):
        left, top = given[j], largest[j]
        taken = left & -<int32_t>((above[2 * j] == top) | (above[2 * j] != above[2 * j]))
        first[2 * j] = taken
        left ^= taken
        taken = left & -<int32_t>((above[2 * j + 1] == top) | (above[2 * j + 1] != above[2 * j + 1]))
        first[2 * j + 1] = taken
        left ^= taken
        taken = left & -<int32_t>((below[2 * j] == top) | (below[2 * j] != below[2 * j]))
        second[2 * j] = taken
        second[2 * j + 1] = left ^ taken


def gradient(const float[:, :, ::1] x, const float[:, :, ::1] largest, const int32_t[:, :, ::1] given, int32_t[:, :, ::1] out):
    """Fills `out`, the bits of the gradient of `x` [n, 2 a, 2 b], from those of `given` [n, a, b]."""
    cdef Py_ssize_t n, row, count = largest.shape[2]
    if count == 0:
        return
    with nogil:
        for n in range(largest.shape[0]):
            for row in range(largest.shape[1]):
                pair(
                    &x[n, 2 * row, 0], &x[n, 2 * row + 1, 0], &largest[n, row, 0], &given[n, row, 0],
                    &out[n, 2 * row, 0], &out[n, 2 * row + 1, 0], count,
                )
