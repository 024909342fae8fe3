// cuSOLVER of the pretend device: LU and Cholesky's factors, and equations solved by LU.
//
// QR, eigenvalues and singular values are in cusolver_spectra.cpp. Left out, and made by build.py to refuse: the rest.
#include "cusolver.h"
#include "factors.h"

using namespace pretend;
using namespace pretend::cusolver;

namespace
{
constexpr int VERSION[] = {11, 7, 5};
constexpr int WORKSPACE = 1; // nothing is needed, but CuPy allocates it

int needs_no_workspace(int *size)
{
    *size = WORKSPACE;
    return SUCCESS;
}
} // namespace

PRETEND_API int cusolverGetProperty(int which, int *value)
{
    *value = VERSION[which];
    return SUCCESS;
}

PRETEND_API int cusolverDnCreate(Handle **to)
{
    *to = new Handle;
    return SUCCESS;
}

PRETEND_API int cusolverDnDestroy(Handle *handle)
{
    delete handle;
    return SUCCESS;
}

PRETEND_API int cusolverDnSetStream(Handle *handle, void *stream)
{
    handle->stream = stream;
    return SUCCESS;
}

PRETEND_API int cusolverDnGetStream(Handle *handle, void **stream)
{
    *stream = handle->stream;
    return SUCCESS;
}

#define FACTORS(Letter, T)                                                                                             \
    PRETEND_API int cusolverDn##Letter##getrf_bufferSize(Handle *, int, int, T *, int, int *size)                      \
    {                                                                                                                  \
        return needs_no_workspace(size);                                                                               \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##potrf_bufferSize(Handle *, int, int, T *, int, int *size)                      \
    {                                                                                                                  \
        return needs_no_workspace(size);                                                                               \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##getrf(Handle *handle, int rows, int columns, T *a, int lda, T *, int *pivots,  \
                                              int *singular)                                                           \
    {                                                                                                                  \
        return put(handle, [=] { *singular = factor_lu(Matrix<T>{a, lda}, rows, columns, pivots); });                  \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##getrs(Handle *handle, int op, int n, int columns, T *a, int lda,               \
                                              const int *pivots, T *b, int ldb, int *wrong_argument)                   \
    {                                                                                                                  \
        return put(handle, [=] {                                                                                       \
            *wrong_argument = 0;                                                                                       \
            solve_by_lu(Matrix<T>{a, lda}, op, pivots, n, Matrix<T>{b, ldb}, columns);                                 \
        });                                                                                                            \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##potrf(Handle *handle, int triangle, int n, T *a, int lda, T *, int,            \
                                              int *wrong)                                                              \
    {                                                                                                                  \
        return put(handle, [=] { *wrong = factor_cholesky(Matrix<T>{a, lda}, (Triangle)triangle, n); });               \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##potrfBatched(Handle *handle, int triangle, int n, T **a, int lda, int *wrong,  \
                                                     int count)                                                        \
    {                                                                                                                  \
        return put(handle, [=] {                                                                                       \
            for (int i = 0; i < count; ++i)                                                                            \
                wrong[i] = factor_cholesky(Matrix<T>{a[i], lda}, (Triangle)triangle, n);                               \
        });                                                                                                            \
    }
FACTORS(S, float)
FACTORS(D, double)
FACTORS(C, std::complex<float>)
FACTORS(Z, std::complex<double>)
