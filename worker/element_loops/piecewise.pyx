"""Element-wise calls on float32 and booleans, one after the other on a piece that stays in a core's nearest cache, then on the
next: NumPy's inner loops without the overhead of its calls, and a choice by bits."""

import numpy as np

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from gt.worker.element_loops.ufunc_loop cimport Loop, memory_of, order_of, typed_loop

DEF PIECE = 2048

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
    #define GT_IVDEP _Pragma("GCC ivdep")
    #else
    #define GT_IVDEP
    #endif
    #define GT_CHOOSE(A, B) GT_IVDEP for (Py_ssize_t j = 0; j < size; j++) out[j] = (B) ^ (((A) ^ (B)) & -(int32_t)chosen[j])
    /* Bits of `x` where `chosen` is 1, else of `y`; steps are 0 for a number. `out` may be `x` or `y`. */
    static void gt_select(const char *chosen, const int32_t *x, const int32_t *y, int32_t *out, int x_step, int y_step, Py_ssize_t size) {
        const int32_t a = x[0], b = y[0];
        if (x_step && y_step) { GT_CHOOSE(x[j], y[j]); }
        else if (y_step) { GT_CHOOSE(a, y[j]); }
        else if (x_step) { GT_CHOOSE(x[j], b); }
        else { GT_CHOOSE(a, b); }
    }
    """
    void select "gt_select"(
        const char *chosen, const int32_t *x, const int32_t *y, int32_t *out, int x_step, int y_step, Py_ssize_t size
    ) noexcept nogil

cdef struct Call:
    Loop loop
    void *data
    int count
    int registers[4]

cdef object ARRAY = np.ndarray


cdef class Pieces:
    """Calls over registers, `(function, registers of its operands and its result)`, where None is the choice by a condition.

    A register holds a tensor's elements ('t'), those of a row that is the same for all rows ('r'), a number ('n'), zeros ('z') or
    a piece that only calls read ('s'). `booleans`: the registers of booleans.
    """

    cdef Call *calls
    cdef int count, registers
    cdef bytes kinds
    cdef list held
    cdef char **at
    cdef Py_ssize_t *sizes
    cdef Py_ssize_t *steps
    cdef float *numbers
    cdef char *scratch

    def __cinit__(self, calls, bytes kinds, booleans):
        cdef int number, place
        cdef Call *call
        self.count, self.registers, self.kinds = len(calls), len(kinds), kinds
        self.calls = <Call *>calloc(max(1, self.count), sizeof(Call))
        self.at = <char **>calloc(self.registers + 1, sizeof(char *))
        self.sizes = <Py_ssize_t *>calloc(self.registers + 1, sizeof(Py_ssize_t))
        self.steps = <Py_ssize_t *>calloc(self.registers + 1, sizeof(Py_ssize_t))
        self.numbers = <float *>calloc(self.registers + 1, sizeof(float))
        self.scratch = <char *>calloc(self.registers + 1, 4 * PIECE)
        if not (self.calls and self.at and self.sizes and self.steps and self.numbers and self.scratch):
            raise MemoryError()
        for number in range(self.registers):
            self.sizes[number] = 1 if number in booleans else 4
            self.steps[number] = 0 if kinds[number] == c'n' else self.sizes[number]
        self.held = [function for function, _ in calls]
        for number, (function, operands) in enumerate(calls):
            call = &self.calls[number]
            call.count = len(operands)
            flags = 0
            for place, register in enumerate(operands):
                call.registers[place] = register
                if register in booleans:
                    flags |= 1 << place
            if function is not None:
                call.loop = typed_loop(function, flags, &call.data)
                if call.loop == NULL:
                    raise ValueError(f"NumPy has no loop of {function} for these dtypes")

    def __dealloc__(self):
        free(self.calls)
        free(self.at)
        free(self.sizes)
        free(self.steps)
        free(self.numbers)
        free(self.scratch)

    def order(self, operands):
        """How the tensors among the operands lie: 1 row by row, 2 column by column, which rows do not allow; 0 where they do neither,
        or a number is too large for a floating-point one. Notes the numbers."""
        cdef int number, found, common = 3
        for number, operand in enumerate(operands):
            if self.kinds[number] == c't':
                if type(operand) is not ARRAY:
                    return 0
                common &= order_of(operand)
            elif self.kinds[number] == c'r':
                if type(operand) is not ARRAY or not order_of(operand) & 1:
                    return 0
                common &= 1
            elif type(operand) is ARRAY:
                if not order_of(operand):
                    return 0
            else:
                try:
                    self.numbers[number] = <float><double>operand
                except OverflowError:
                    return 0
        return 1 if common & 1 else common

    def run(self, list operands, Py_ssize_t total, Py_ssize_t row):
        """Makes all calls, after `order` has looked at the operands, which are those of the first registers; what is no array is in
        scratch memory or a number that was noted. A row has so many elements."""
        cdef int number, place
        cdef Py_ssize_t start = 0, size, done, left, shift
        cdef char *args[4]
        cdef Py_ssize_t steps[4]
        cdef Call *call
        cdef bytes kinds = self.kinds
        cdef const char *kind = kinds
        for number in range(self.registers):
            if kind[number] == c's' or kind[number] == c'z':
                self.at[number] = self.scratch + number * (4 * PIECE)
                continue
            operand = operands[number]
            if type(operand) is ARRAY:
                self.at[number] = memory_of(operand)
            else:
                self.at[number] = <char *>&self.numbers[number]
        with nogil:
            while start < total:
                # of one row at most, where a row is an operand
                done = start % row
                size = min(min(row - done, total - start), <Py_ssize_t>PIECE)
                for number in range(self.count):
                    call = &self.calls[number]
                    for place in range(call.count):
                        left = call.registers[place]
                        shift = start if kind[left] == c't' else done if kind[left] == c'r' else 0
                        args[place] = self.at[left] + shift * self.sizes[left]
                        steps[place] = self.steps[left]
                    if call.loop != NULL:
                        call.loop(args, &size, steps, call.data)
                    else:
                        select(args[0], <int32_t *>args[1], <int32_t *>args[2], <int32_t *>args[3], steps[1] != 0, steps[2] != 0, size)
                start += size
