// LAPACK as SciPy's wheels bring it along, by one name for all kinds of numbers. Columns are one after the other.
#pragma once
#include <complex>

namespace pretend
{
namespace lapack
{
constexpr int BY_COLUMNS = 102;

void look_for_nan(int) __asm__("scipy_LAPACKE_set_nancheck");

#define LAPACK(letter, T, Real, orthogonal, symmetric)                                                                 \
    int geqrf(int, int rows, int columns, T *a, int lda, T *tau) __asm__("scipy_LAPACKE_" letter "geqrf");             \
    int orgqr(int, int rows, int columns, int k, T *a, int lda,                                                        \
              const T *tau) __asm__("scipy_LAPACKE_" letter orthogonal "gqr");                                         \
    int syevd(int, char job, char triangle, int n, T *a, int lda,                                                      \
              Real *w) __asm__("scipy_LAPACKE_" letter symmetric "evd");                                               \
    int gesvd(int, char job_u, char job_vt, int rows, int columns, T *a, int lda, Real *s, T *u, int ldu, T *vt,       \
              int ldvt, Real *superdiagonal) __asm__("scipy_LAPACKE_" letter "gesvd");
LAPACK("s", float, float, "or", "sy")
LAPACK("d", double, double, "or", "sy")
LAPACK("c", std::complex<float>, float, "un", "he")
LAPACK("z", std::complex<double>, double, "un", "he")
#undef LAPACK

#define LAPACK(letter, T)                                                                                              \
    int geev(int, char left, char right, int n, T *a, int lda, T *real, T *imaginary, T *vl, int ldvl, T *vr,          \
             int ldvr) __asm__("scipy_LAPACKE_" letter "geev");
LAPACK("s", float)
LAPACK("d", double)
#undef LAPACK

#define LAPACK(letter, T)                                                                                              \
    int geev(int, char left, char right, int n, T *a, int lda, T *w, T *vl, int ldvl, T *vr,                           \
             int ldvr) __asm__("scipy_LAPACKE_" letter "geev");
LAPACK("c", std::complex<float>)
LAPACK("z", std::complex<double>)
#undef LAPACK
} // namespace lapack
} // namespace pretend
