"""Products of few rows with an int8 weight, which is widened in registers; for many rows, blocks of it as float32."""

from libc.stdint cimport int16_t, int32_t, int8_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #if defined(__AVX2__) && defined(__FMA__)
    #include <immintrin.h>
    #endif
    /* Rows of the weight at once: their sums, two registers each, are half of those that AVX2 has. */
    #define GT_ROWS 4
    #define GT_LANES 16

    /* `count` rows of a product, at most GT_ROWS. The sum of a row is 16 sums of every 16th product, added up by halves. */
    static inline void gt_row_sums(
        const float *x, const int8_t *w, ptrdiff_t apart, float *out, const int count, ptrdiff_t k
    ) {
        float sums[GT_ROWS][GT_LANES];
        ptrdiff_t j = 0;
        int row, lane, half;
    #if defined(__AVX2__) && defined(__FMA__)
        __m256 low[GT_ROWS], high[GT_ROWS];
        for (row = 0; row < count; row++) low[row] = high[row] = _mm256_setzero_ps();
        for (; j + GT_LANES <= k; j += GT_LANES) {
            const __m256 left = _mm256_loadu_ps(x + j), right = _mm256_loadu_ps(x + j + 8);
    #pragma GCC unroll 4
            for (row = 0; row < count; row++) {
                const int8_t *at = w + row * apart + j;
                const __m256i first = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at));
                const __m256i second = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(at + 8)));
                low[row] = _mm256_fmadd_ps(left, _mm256_cvtepi32_ps(first), low[row]);
                high[row] = _mm256_fmadd_ps(right, _mm256_cvtepi32_ps(second), high[row]);
            }
        }
        for (row = 0; row < count; row++) {
            _mm256_storeu_ps(sums[row], low[row]);
            _mm256_storeu_ps(sums[row] + 8, high[row]);
        }
    #else
        for (row = 0; row < count; row++)
            for (lane = 0; lane < GT_LANES; lane++) sums[row][lane] = 0;
        for (; j + GT_LANES <= k; j += GT_LANES)
            for (row = 0; row < count; row++)
                for (lane = 0; lane < GT_LANES; lane++)
                    sums[row][lane] += x[j + lane] * (float)w[row * apart + j + lane];
    #endif
        for (row = 0; row < count; row++) {
            for (lane = 0; j + lane < k; lane++) sums[row][lane] += x[j + lane] * (float)w[row * apart + j + lane];
            for (half = GT_LANES / 2; half; half /= 2)
                for (lane = 0; lane < half; lane++) sums[row][lane] += sums[row][lane + half];
            out[row] = sums[row][0];
        }
    }

    static inline void gt_exact_sums(
        const int16_t *x, const int8_t *w, ptrdiff_t apart, int32_t *out, const int count, ptrdiff_t k
    ) {
        for (int row = 0; row < count; row++) {
            const int8_t *at = w + row * apart;
            int32_t sum = 0;
            for (ptrdiff_t j = 0; j < k; j++) sum += (int32_t)x[j] * (int16_t)at[j];
            out[row] = sum;
        }
    }

    static void gt_widen(const int8_t *__restrict w, ptrdiff_t apart, float *__restrict out, ptrdiff_t wide, ptrdiff_t n, ptrdiff_t k) {
        for (ptrdiff_t i = 0; i < n; i++)
            for (ptrdiff_t j = 0; j < k; j++) out[i * wide + j] = w[i * apart + j];
    }

    /* All rows of x by some rows of the weight before the next: these stay in the nearest cache. */
    #define GT_PRODUCT(NAME, SUMS, IN, OUT) \\
        static void NAME(const IN *x, ptrdiff_t m, const int8_t *w, ptrdiff_t apart, ptrdiff_t n, \\
                         OUT *out, ptrdiff_t wide, ptrdiff_t k) { \\
            ptrdiff_t i = 0, row; \\
            for (; i + GT_ROWS <= n; i += GT_ROWS) \\
                for (row = 0; row < m; row++) SUMS(x + row * k, w + i * apart, apart, out + row * wide + i, GT_ROWS, k); \\
            for (; i < n; i++) \\
                for (row = 0; row < m; row++) SUMS(x + row * k, w + i * apart, apart, out + row * wide + i, 1, k); \\
        }
    GT_PRODUCT(gt_numbers, gt_row_sums, float, float)
    GT_PRODUCT(gt_exact, gt_exact_sums, int16_t, int32_t)
    """
    void gt_numbers(
        const float *x, Py_ssize_t m, const int8_t *w, Py_ssize_t apart, Py_ssize_t n, float *out, Py_ssize_t wide, Py_ssize_t k
    ) noexcept nogil
    void gt_exact(
        const int16_t *x, Py_ssize_t m, const int8_t *w, Py_ssize_t apart, Py_ssize_t n, int32_t *out, Py_ssize_t wide, Py_ssize_t k
    ) noexcept nogil
    void gt_widen(const int8_t *w, Py_ssize_t apart, float *out, Py_ssize_t wide, Py_ssize_t n, Py_ssize_t k) noexcept nogil


def widen(const int8_t[:, :] w, float[:, :] out):
    """Fills `out` with the numbers of `w`. Rows of both are stretches."""
    if w.shape[0] and w.shape[1]:
        with nogil:
            gt_widen(&w[0, 0], w.strides[0], &out[0, 0], out.strides[0] // 4, w.shape[0], w.shape[1])


def numbers(const float[:, ::1] x, const int8_t[:, :] w, float[:, :] out):
    """Fills `out` [m, n] with the product of x [m, k] and the transpose of w [n, k]. Rows of `w` and `out` are stretches."""
    if x.shape[0] and w.shape[0] and x.shape[1]:
        with nogil:
            gt_numbers(&x[0, 0], x.shape[0], &w[0, 0], w.strides[0], w.shape[0], &out[0, 0], out.strides[0] // 4, x.shape[1])


def exact(const int16_t[:, ::1] x, const int8_t[:, :] w, int32_t[:, :] out):
    """The same of whole numbers, which are those of int8: exact sums of at most 131,071 products."""
    if x.shape[0] and w.shape[0] and x.shape[1]:
        with nogil:
            gt_exact(&x[0, 0], x.shape[0], &w[0, 0], w.strides[0], w.shape[0], &out[0, 0], out.strides[0] // 4, x.shape[1])
