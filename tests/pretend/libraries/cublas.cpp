// cuBLAS of the pretend device: products of matrices and vectors by plain loops, put on the handle's stream.
//
// Strict about: kinds of operands that cuBLAS has no product for; leading dimensions; where scalars are (pointer mode).
// A product that is captured without a workspace of the handle's own is refused, for the library would look for memory.
// Left out: what cuBLAS rounds, but for TF32, and in which order it adds; products so large that loops would take minutes, which are not
// computed at all; and what is neither here nor in cublas_factors.cpp, which build.py makes to refuse.
#include "cublas.h"
#include "factors.h"
#include <algorithm>
#include <complex>
#include <library_types.h>
#include <vector>

using namespace pretend;
using namespace pretend::cublas;
using Complex64 = std::complex<float>;
using Complex128 = std::complex<double>;
using Stride = long long;

namespace
{
constexpr int VERSION = 120900;
constexpr double MOST_MULTIPLIED = 3e8;
enum Compute { F32 = 68, F32_PEDANTIC, F64, F64_PEDANTIC, I32, FAST_16F = 74, FAST_16BF, FAST_TF32 = 77 };

// A scalar: of the host it is read at once, of the device when the stream gets there.
template <typename T> class Scalar
{
    const T *place;
    T value{};

public:
    Scalar(const Handle *handle, const T *from) : place(handle->scalars_on_device ? from : nullptr)
    {
        if (!place)
            value = *from;
    }

    T operator()() const { return place ? *place : value; }
};

// A float of which tensor cores read the nearest of 10 bits of fraction.
struct Tf32 {
    unsigned bits;

    operator float() const
    {
        unsigned rounded = (bits + 0x0fff + (bits >> 13 & 1)) & 0xffffe000u;
        float value;
        memcpy(&value, &rounded, sizeof value);
        return value;
    }
};

// One product; `In` and `Out` are what matrices hold, `Wide` is what is computed in. Columns are one after the other.
template <typename In, typename Out, typename Wide> struct Product {
    int op_a, op_b, m, n, k;
    int lda, ldb, ldc;
    Stride stride_a, stride_b, stride_c;
    int count;

    bool well_formed() const
    {
        bool fits = lda >= std::max(1, op_a ? k : m) && ldb >= std::max(1, op_b ? n : k) && ldc >= std::max(1, m);
        if (!fits)
            fprintf(stderr, "[pretend] cuBLAS: leading dimensions %d %d %d of %d × %d × %d\n", lda, ldb, ldc, m, n, k);
        return fits;
    }

    static Wide element(const In *matrix, int op, Stride row, Stride column, Stride ld)
    {
        Wide found = Wide(matrix[op ? column + row * ld : row + column * ld]);
        return op == CONJUGATED ? conjugate(found) : found;
    }

    void operator()(const In *a, const In *b, Out *c, Wide alpha, Wide beta) const
    {
        if ((double)m * n * k > MOST_MULTIPLIED) {
            static bool said = false;
            if (!said)
                fprintf(stderr, "[pretend] cuBLAS: products as large as %d × %d × %d are left out\n", m, n, k);
            said = true;
            return;
        }
        std::vector<Wide> column(m);
        for (int j = 0; j < n; ++j) {
            std::fill(column.begin(), column.end(), Wide(0));
            for (int p = 0; p < k; ++p) {
                Wide factor = element(b, op_b, p, j, ldb);
                for (int i = 0; i < m; ++i)
                    column[i] += element(a, op_a, i, p, lda) * factor;
            }
            for (int i = 0; i < m; ++i) {
                Out &at = c[i + (Stride)j * ldc];
                Wide before = beta == Wide(0) ? Wide(0) : Wide(beta * Wide(at)); // what is not asked for may be NaN
                at = Out(Wide(alpha * column[i] + before));
            }
        }
    }

    int put_on(Handle *handle, const void *a, const void *b, void *c, const void *alpha, const void *beta) const
    {
        if (!well_formed())
            return INVALID_VALUE;
        Scalar<Wide> scale(handle, (const Wide *)alpha), keep(handle, (const Wide *)beta);
        Product product = *this;
        return put(handle, [=] {
            for (int i = 0; i < product.count; ++i)
                product((const In *)a + i * product.stride_a, (const In *)b + i * product.stride_b,
                        (Out *)c + i * product.stride_c, scale(), keep());
        });
    }
};

// y = alpha · op(a) x + beta · y
template <typename T> int put_gemv(Handle *handle, int op, int m, int n, const T *alpha, const T *a, int lda,
                                   const T *x, int step_x, const T *beta, T *y, int step_y)
{
    Scalar<T> scale(handle, alpha), keep(handle, beta);
    int rows = op ? n : m, columns = op ? m : n;
    return put(handle, [=] {
        for (Stride i = 0; i < rows; ++i) {
            T sum = T(0);
            for (Stride j = 0; j < columns; ++j)
                sum += Product<T, T, T>::element(a, op, i, j, lda) * x[j * step_x];
            T &out = y[i * step_y];
            out = scale() * sum + (keep() == T(0) ? T(0) : keep() * out);
        }
    });
}

template <typename T>
int put_dot(Handle *handle, bool conjugated, int n, const T *x, int step_x, const T *y, int step_y, T *out)
{
    return put(handle, [=] {
        T sum = T(0);
        for (Stride i = 0; i < n; ++i)
            sum += (conjugated ? conjugate(x[i * step_x]) : x[i * step_x]) * y[i * step_y];
        *out = sum;
    });
}

// a += alpha · x yᵀ
template <typename T> int put_ger(Handle *handle, bool conjugated, int m, int n, const T *alpha, const T *x, int step_x,
                                  const T *y, int step_y, T *a, int lda)
{
    Scalar<T> scale(handle, alpha);
    return put(handle, [=] {
        for (Stride j = 0; j < n; ++j) {
            T factor = conjugated ? conjugate(y[j * step_y]) : y[j * step_y];
            for (Stride i = 0; i < m; ++i)
                a[i + j * lda] += scale() * x[i * step_x] * factor;
        }
    });
}
} // namespace

PRETEND_API int cublasCreate_v2(Handle **to)
{
    *to = new Handle;
    return SUCCESS;
}

PRETEND_API int cublasDestroy_v2(Handle *handle)
{
    delete handle;
    return SUCCESS;
}

// As the manual says: the workspace goes back to cuBLAS's own.
PRETEND_API int cublasSetStream_v2(Handle *handle, void *stream)
{
    handle->stream = stream;
    handle->workspace = nullptr;
    return SUCCESS;
}

PRETEND_API int cublasGetStream_v2(Handle *handle, void **stream)
{
    *stream = handle->stream;
    return SUCCESS;
}

PRETEND_API int cublasSetWorkspace_v2(Handle *handle, void *workspace, size_t)
{
    handle->workspace = workspace;
    return SUCCESS;
}

PRETEND_API int cublasGetVersion_v2(Handle *, int *version)
{
    *version = VERSION;
    return SUCCESS;
}

PRETEND_API int cublasSetPointerMode_v2(Handle *handle, int mode)
{
    handle->scalars_on_device = mode;
    return SUCCESS;
}

PRETEND_API int cublasGetPointerMode_v2(Handle *handle, int *mode)
{
    *mode = handle->scalars_on_device;
    return SUCCESS;
}

PRETEND_API int cublasSetMathMode(Handle *handle, int mode)
{
    handle->math = mode;
    return SUCCESS;
}

PRETEND_API int cublasGetMathMode(Handle *handle, int *mode)
{
    *mode = handle->math;
    return SUCCESS;
}

PRETEND_API int cublasGemmStridedBatchedEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                                           const void *a, int kind_a, int lda, Stride stride_a, const void *b,
                                           int kind_b, int ldb, Stride stride_b, const void *beta, void *c, int kind_c,
                                           int ldc, Stride stride_c, int count, int compute, int)
{
#define TAKES(in, out, wide, In, Out, Wide)                                                                            \
    if (kind_a == in && kind_b == in && kind_c == out && wide)                                                         \
        return Product<In, Out, Wide>{op_a, op_b, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, count}.put_on( \
            handle, a, b, c, alpha, beta);
    bool fast = compute == FAST_16F || compute == FAST_16BF || compute == FAST_TF32;
    bool single = compute == F32 || compute == F32_PEDANTIC || fast;
    bool twofold = compute == F64 || compute == F64_PEDANTIC;
    TAKES(CUDA_R_32F, CUDA_R_32F, compute == FAST_TF32, Tf32, float, float)
    TAKES(CUDA_R_32F, CUDA_R_32F, single, float, float, float)
    TAKES(CUDA_R_64F, CUDA_R_64F, twofold, double, double, double)
    TAKES(CUDA_R_16F, CUDA_R_16F, single, Half, Half, float)
    TAKES(CUDA_R_16F, CUDA_R_32F, single, Half, float, float)
    TAKES(CUDA_R_16BF, CUDA_R_16BF, single, Bfloat16, Bfloat16, float)
    TAKES(CUDA_R_16BF, CUDA_R_32F, single, Bfloat16, float, float)
    TAKES(CUDA_C_32F, CUDA_C_32F, single, Complex64, Complex64, Complex64)
    TAKES(CUDA_C_64F, CUDA_C_64F, twofold, Complex128, Complex128, Complex128)
    TAKES(CUDA_R_8I, CUDA_R_32I, compute == I32, signed char, int, int)
    fprintf(stderr, "[pretend] cuBLAS has no product of kinds %d %d %d by %d\n", kind_a, kind_b, kind_c, compute);
    return NOT_SUPPORTED;
}

PRETEND_API int cublasGemmEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                             int kind_a, int lda, const void *b, int kind_b, int ldb, const void *beta, void *c,
                             int kind_c, int ldc, int compute, int algorithm)
{
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, 0, b, kind_b, ldb, 0, beta, c,
                                      kind_c, ldc, 0, 1, compute, algorithm);
}

PRETEND_API int cublasSgemmEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                              int kind_a, int lda, const void *b, int kind_b, int ldb, const void *beta, void *c,
                              int kind_c, int ldc)
{
    return cublasGemmEx(handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, b, kind_b, ldb, beta, c, kind_c, ldc, F32,
                        -1);
}

// The products of one kind of numbers, whose letter is in their names.
#define PRODUCTS(Letter, T)                                                                                            \
    PRETEND_API int cublas##Letter##gemm_v2(Handle *handle, int op_a, int op_b, int m, int n, int k, const T *alpha,   \
                                            const T *a, int lda, const T *b, int ldb, const T *beta, T *c, int ldc)    \
    {                                                                                                                  \
        Product<T, T, T> product{op_a, op_b, m, n, k, lda, ldb, ldc, 0, 0, 0, 1};                                      \
        return product.put_on(handle, a, b, c, alpha, beta);                                                           \
    }                                                                                                                  \
    PRETEND_API int cublas##Letter##gemmStridedBatched(                                                                \
        Handle *handle, int op_a, int op_b, int m, int n, int k, const T *alpha, const T *a, int lda, Stride stride_a, \
        const T *b, int ldb, Stride stride_b, const T *beta, T *c, int ldc, Stride stride_c, int count)                \
    {                                                                                                                  \
        Product<T, T, T> product{op_a, op_b, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, count};             \
        return product.put_on(handle, a, b, c, alpha, beta);                                                           \
    }                                                                                                                  \
    PRETEND_API int cublas##Letter##gemmBatched(Handle *handle, int op_a, int op_b, int m, int n, int k,               \
                                                const T *alpha, const T **a, int lda, const T **b, int ldb,            \
                                                const T *beta, T **c, int ldc, int count)                              \
    {                                                                                                                  \
        Product<T, T, T> product{op_a, op_b, m, n, k, lda, ldb, ldc, 0, 0, 0, 1};                                      \
        Scalar<T> scale(handle, alpha), keep(handle, beta);                                                            \
        return put(handle, [=] {                                                                                       \
            for (int i = 0; i < count; ++i)                                                                            \
                product(a[i], b[i], c[i], scale(), keep());                                                            \
        });                                                                                                            \
    }                                                                                                                  \
    PRETEND_API int cublas##Letter##gemv_v2(Handle *handle, int op, int m, int n, const T *alpha, const T *a, int lda, \
                                            const T *x, int step_x, const T *beta, T *y, int step_y)                   \
    {                                                                                                                  \
        return put_gemv(handle, op, m, n, alpha, a, lda, x, step_x, beta, y, step_y);                                  \
    }
PRODUCTS(S, float)
PRODUCTS(D, double)
PRODUCTS(C, Complex64)
PRODUCTS(Z, Complex128)

#define DOT(Name, T, conjugated)                                                                                       \
    PRETEND_API int cublas##Name##_v2(Handle *handle, int n, const T *x, int step_x, const T *y, int step_y, T *out)   \
    {                                                                                                                  \
        return put_dot(handle, conjugated, n, x, step_x, y, step_y, out);                                              \
    }
DOT(Sdot, float, false)
DOT(Ddot, double, false)
DOT(Cdotu, Complex64, false)
DOT(Zdotu, Complex128, false)
DOT(Cdotc, Complex64, true)
DOT(Zdotc, Complex128, true)

#define GER(Name, T, conjugated)                                                                                       \
    PRETEND_API int cublas##Name##_v2(Handle *handle, int m, int n, const T *alpha, const T *x, int step_x,            \
                                      const T *y, int step_y, T *a, int lda)                                           \
    {                                                                                                                  \
        return put_ger(handle, conjugated, m, n, alpha, x, step_x, y, step_y, a, lda);                                 \
    }
GER(Sger, float, false)
GER(Dger, double, false)
GER(Cgeru, Complex64, false)
GER(Zgeru, Complex128, false)
GER(Cgerc, Complex64, true)
GER(Zgerc, Complex128, true)
