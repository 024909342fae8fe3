// cuBLAS of the pretend device, its second part: factors of many small matrices, and equations solved by them.
#include "cublas.h"
#include "factors.h"

using namespace pretend;
using namespace pretend::cublas;

namespace
{
template <typename T> int put_getrf(Handle *handle, int n, T **a, int lda, int *pivots, int *singular, int count)
{
    return put(handle, [=] {
        for (int i = 0; i < count; ++i)
            singular[i] = factor_lu(Matrix<T>{a[i], lda}, n, n, pivots ? pivots + i * n : nullptr);
    });
}

template <typename T>
int put_getrs(Handle *handle, int op, int n, int columns, T **a, int lda, const int *pivots, T **b, int ldb, int count)
{
    return put(handle, [=] {
        for (int i = 0; i < count; ++i)
            solve_by_lu(Matrix<T>{a[i], lda}, op, pivots ? pivots + i * n : nullptr, n, Matrix<T>{b[i], ldb}, columns);
    });
}

template <typename T>
int put_getri(Handle *handle, int n, T **a, int lda, const int *pivots, T **inverse, int ld, int *singular, int count)
{
    return put(handle, [=] {
        for (int i = 0; i < count; ++i) {
            Matrix<T> lu{a[i], lda}, out{inverse[i], ld};
            singular[i] = 0;
            for (int row = 0; row < n; ++row) {
                if (lu(row, row) == T(0) && !singular[i])
                    singular[i] = row + 1;
                for (int column = 0; column < n; ++column)
                    out(row, column) = T(row == column);
            }
            solve_by_lu(lu, AS_IT_IS, pivots ? pivots + i * n : nullptr, n, out, n);
        }
    });
}
} // namespace

#define FACTORS(Letter, T)                                                                                             \
    PRETEND_API int cublas##Letter##getrfBatched(Handle *handle, int n, T **a, int lda, int *pivots, int *singular,    \
                                                 int count)                                                            \
    {                                                                                                                  \
        return put_getrf(handle, n, a, lda, pivots, singular, count);                                                  \
    }                                                                                                                  \
    PRETEND_API int cublas##Letter##getrsBatched(Handle *handle, int op, int n, int columns, T **a, int lda,           \
                                                 const int *pivots, T **b, int ldb, int *wrong_argument, int count)    \
    {                                                                                                                  \
        *wrong_argument = 0; /* at the host */                                                                         \
        return put_getrs(handle, op, n, columns, a, lda, pivots, b, ldb, count);                                       \
    }                                                                                                                  \
    PRETEND_API int cublas##Letter##getriBatched(Handle *handle, int n, T **a, int lda, const int *pivots,             \
                                                 T **inverse, int ld, int *singular, int count)                        \
    {                                                                                                                  \
        return put_getri(handle, n, a, lda, pivots, inverse, ld, singular, count);                                     \
    }
FACTORS(S, float)
FACTORS(D, double)
FACTORS(C, std::complex<float>)
FACTORS(Z, std::complex<double>)
