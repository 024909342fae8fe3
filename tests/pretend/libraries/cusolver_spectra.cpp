// cuSOLVER of the pretend device, its second part: QR, eigenvalues and singular values, by LAPACK.
//
// Strict about: shapes that cuSOLVER refuses; workspaces, over which all of it writes; captures, which nothing is in that cuSOLVER
// leaves to the host in part. Vectors whose sign or phase is free have another than LAPACK's, or they would be NumPy's.
#include "cusolver.h"
#include "lapack.h"
#include <cuda_runtime_api.h>
#include <library_types.h>
#include <vector>

using namespace pretend;
using namespace pretend::cusolver;
using lapack::BY_COLUMNS;

namespace
{
using Complex32 = std::complex<float>;
using Complex64 = std::complex<double>;
template <typename T> using RealOf = decltype(std::abs(T()));

constexpr int MOST_IN_A_BATCH = 32; // rows and columns of a matrix
enum Job { VALUES, VECTORS };
enum Triangle { LOWER, UPPER };
constexpr char JOBS[] = {'N', 'V'}, TRIANGLES[] = {'L', 'U'};

// LAPACKE looks for NaN in matrices otherwise, and computes nothing of these.
const bool nan_is_a_number = (lapack::look_for_nan(0), true);

// Part of it is done at the host: whoever captures waits in vain, which spoils the capture.
int put_with_host(Handle *handle, Work work)
{
    if (pretend_capturing(handle->stream)) {
        cudaStreamSynchronize((cudaStream_t)handle->stream);
        return EXECUTION_FAILED;
    }
    return put(handle, work);
}

// A workspace, of so many bytes.
struct Room {
    void *begin;
    size_t bytes;

    void spoil() const { memset(begin, 0xff, bytes); }
};

int elements(int rows, int columns) { return std::max(1, rows) * std::max(1, columns); }

int needs(int *to, int count)
{
    *to = count;
    return SUCCESS;
}

float turn(float) { return -1; }
double turn(double) { return -1; }
template <typename T> std::complex<T> turn(std::complex<T>) { return {0, 1}; }
template <typename T> T conjugate(T x) { return x; }
template <typename T> std::complex<T> conjugate(std::complex<T> x) { return std::conj(x); }

template <typename T> void multiply(T *matrix, int rows, int columns, int ld, T factor)
{
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i)
            matrix[i + (size_t)j * ld] *= factor;
}

template <typename T>
int put_geqrf(Handle *handle, int rows, int columns, T *a, int lda, T *tau, T *work, int length, int *wrong)
{
    if (rows < 0 || columns < 0 || lda < std::max(1, rows) || length < elements(rows, columns))
        return INVALID_VALUE;
    Room room{work, length * sizeof(T)};
    return put(handle, [=] {
        room.spoil();
        *wrong = lapack::geqrf(BY_COLUMNS, rows, columns, a, lda, tau);
    });
}

template <typename T> int put_orgqr(Handle *handle, int rows, int columns, int k, T *a, int lda, const T *tau, T *work,
                                    int length, int *wrong)
{
    bool fits = rows >= columns && columns >= k && k >= 0 && lda >= std::max(1, rows);
    if (!fits || length < elements(rows, columns))
        return INVALID_VALUE;
    Room room{work, length * sizeof(T)};
    return put(handle, [=] {
        room.spoil();
        *wrong = lapack::orgqr(BY_COLUMNS, rows, columns, k, a, lda, tau);
    });
}

// As LAPACK asks for it. What is not found of NaN is said as cuSOLVER says that it does not converge.
template <typename T> int singular(char job_u, char job_vt, int rows, int columns, T *a, int lda, RealOf<T> *s, T *u,
                                   int ldu, T *vt, int ldvt)
{
    int count = std::min(rows, columns);
    std::vector<RealOf<T>> superdiagonal(count);
    int wrong =
        lapack::gesvd(BY_COLUMNS, job_u, job_vt, rows, columns, a, lda, s, u, ldu, vt, ldvt, superdiagonal.data());
    T factor = turn(T());
    if (job_u != 'N')
        multiply(job_u == 'O' ? a : u, rows, count, job_u == 'O' ? lda : ldu, factor);
    if (job_vt != 'N')
        multiply(job_vt == 'O' ? a : vt, count, columns, job_vt == 'O' ? lda : ldvt, conjugate(factor));
    return wrong < 0 ? count : wrong;
}

template <typename T> int put_gesvd(Handle *handle, char job_u, char job_vt, int rows, int columns, T *a, int lda,
                                    RealOf<T> *s, T *u, int ldu, T *vt, int ldvt, T *work, int length, int *wrong)
{
    bool fits = rows >= columns && columns >= 0 && lda >= std::max(1, rows);
    bool one_each = !(job_u == 'O' && job_vt == 'O');
    bool has_u = job_u == 'N' || job_u == 'O' || (u && ldu >= rows);
    bool has_vt = job_vt == 'N' || job_vt == 'O' || (vt && ldvt >= columns);
    if (!fits || !one_each || !has_u || !has_vt || length < elements(rows, columns)) {
        fprintf(stderr, "[pretend] cuSOLVER: no gesvd of %d × %d by %c%c\n", rows, columns, job_u, job_vt);
        return INVALID_VALUE;
    }
    Room room{work, length * sizeof(T)};
    return put(handle, [=] {
        room.spoil();
        *wrong = singular(job_u, job_vt, rows, columns, a, lda, s, u, ldu, vt, ldvt);
    });
}

template <typename T> int put_gesvdj(Handle *handle, Job job, int rows, int columns, T *a, int lda, RealOf<T> *s, T *u,
                                     int ldu, T *v, int ldv, T *work, int length, int *wrong, int count)
{
    bool fits = rows <= MOST_IN_A_BATCH && columns <= MOST_IN_A_BATCH && lda >= rows && ldu >= rows && ldv >= columns;
    if (!fits || length < elements(rows, columns))
        return INVALID_VALUE;
    Room room{work, length * sizeof(T)};
    return put(handle, [=] {
        room.spoil();
        std::vector<T> vt(columns * columns);
        char all = job == VECTORS ? 'A' : 'N';
        for (int i = 0; i < count; ++i) {
            T *to = v + (size_t)i * ldv * columns;
            wrong[i] =
                singular(all, all, rows, columns, a + (size_t)i * lda * columns, lda,
                         s + (size_t)i * std::min(rows, columns), u + (size_t)i * ldu * rows, ldu, vt.data(), columns);
            for (int row = 0; job == VECTORS && row < columns; ++row)
                for (int column = 0; column < columns; ++column)
                    to[row + column * ldv] = conjugate(vt[column + row * columns]);
        }
    });
}

template <typename T> int eigenvalues(Job job, Triangle triangle, int n, T *a, int lda, RealOf<T> *w)
{
    int wrong = lapack::syevd(BY_COLUMNS, JOBS[job], TRIANGLES[triangle], n, a, lda, w);
    if (job == VECTORS)
        multiply(a, n, n, lda, turn(T()));
    return wrong;
}

template <typename T>
int put_syevd(Handle *handle, Job job, Triangle triangle, int n, void *a, int lda, void *w, Room room, int *wrong)
{
    return put_with_host(handle, [=] {
        room.spoil();
        *wrong = eigenvalues(job, triangle, n, (T *)a, lda, (RealOf<T> *)w);
    });
}

template <typename T> int put_syevj(Handle *handle, Job job, Triangle triangle, int n, T *a, int lda, RealOf<T> *w,
                                    T *work, int length, int *wrong, int count)
{
    if (n < 0 || lda < std::max(1, n) || length < elements(n, n))
        return INVALID_VALUE;
    Room room{work, length * sizeof(T)};
    return put(handle, [=] {
        room.spoil();
        for (int i = 0; i < count; ++i)
            wrong[i] = eigenvalues(job, triangle, n, a + (size_t)i * lda * n, lda, w + (size_t)i * n);
    });
}

// Of a real matrix: a pair of complex vectors is a column of real parts and one of imaginary parts.
template <typename T> int general(Job job, int n, T *a, int lda, std::complex<T> *w, T *v, int ldv)
{
    std::vector<T> real(n), imaginary(n);
    T *none = nullptr;
    int wrong = lapack::geev(BY_COLUMNS, 'N', JOBS[job], n, a, lda, real.data(), imaginary.data(), none, 1, v, ldv);
    for (int i = 0; i < n; ++i)
        w[i] = {real[i], imaginary[i]};
    return wrong;
}

template <typename T>
int general(Job job, int n, std::complex<T> *a, int lda, std::complex<T> *w, std::complex<T> *v, int ldv)
{
    std::complex<T> *none = nullptr;
    return lapack::geev(BY_COLUMNS, 'N', JOBS[job], n, a, lda, w, none, 1, v, ldv);
}

template <typename T>
int put_geev(Handle *handle, Job job, int n, void *a, int lda, void *w, void *v, int ldv, Room room, int *wrong)
{
    return put_with_host(handle, [=] {
        room.spoil();
        *wrong = general(job, n, (T *)a, lda, (std::complex<RealOf<T>> *)w, (T *)v, ldv);
        if (job == VECTORS)
            multiply((T *)v, n, n, ldv, T(-1)); // the largest of a vector is real, so nothing but the sign is free
    });
}

size_t bytes_of(int kind)
{
    switch (kind) {
    case CUDA_R_32F:
        return sizeof(float);
    case CUDA_R_64F:
        return sizeof(double);
    case CUDA_C_32F:
        return sizeof(Complex32);
    case CUDA_C_64F:
        return sizeof(Complex64);
    default:
        return 0;
    }
}

int real_kind(int kind) { return kind == CUDA_C_32F ? CUDA_R_32F : kind == CUDA_C_64F ? CUDA_R_64F : kind; }
int complex_kind(int kind) { return kind == CUDA_R_32F ? CUDA_C_32F : kind == CUDA_R_64F ? CUDA_C_64F : kind; }

int needs_of_a_kind(int kind, long long n, size_t *on_device, size_t *at_host)
{
    if (!bytes_of(kind) || n < 0)
        return INVALID_VALUE;
    *on_device = *at_host = std::max<size_t>(1, n * n * bytes_of(kind));
    return SUCCESS;
}
} // namespace

#define NOTHING_TO_SAY(Name)                                                                                           \
    PRETEND_API int cusolverDnCreate##Name(void **to)                                                                  \
    {                                                                                                                  \
        *to = new char;                                                                                                \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    PRETEND_API int cusolverDnDestroy##Name(void *told)                                                                \
    {                                                                                                                  \
        delete (char *)told;                                                                                           \
        return SUCCESS;                                                                                                \
    }
NOTHING_TO_SAY(Params)
NOTHING_TO_SAY(GesvdjInfo)
NOTHING_TO_SAY(SyevjInfo)

#define SPECTRA(Letter, T, orgqr, syevj)                                                                               \
    PRETEND_API int cusolverDn##Letter##geqrf_bufferSize(Handle *, int rows, int columns, T *, int, int *length)       \
    {                                                                                                                  \
        return needs(length, elements(rows, columns));                                                                 \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##geqrf(Handle *handle, int rows, int columns, T *a, int lda, T *tau, T *work,   \
                                              int length, int *wrong)                                                  \
    {                                                                                                                  \
        return put_geqrf(handle, rows, columns, a, lda, tau, work, length, wrong);                                     \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##orgqr##_bufferSize(Handle *, int rows, int columns, int, const T *, int,       \
                                                           const T *, int *length)                                     \
    {                                                                                                                  \
        return needs(length, elements(rows, columns));                                                                 \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##orgqr(Handle *handle, int rows, int columns, int k, T *a, int lda,             \
                                              const T *tau, T *work, int length, int *wrong)                           \
    {                                                                                                                  \
        return put_orgqr(handle, rows, columns, k, a, lda, tau, work, length, wrong);                                  \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##gesvd_bufferSize(Handle *, int rows, int columns, int *length)                 \
    {                                                                                                                  \
        return rows < columns ? INVALID_VALUE : needs(length, elements(rows, columns));                                \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##gesvd(Handle *handle, signed char job_u, signed char job_vt, int rows,         \
                                              int columns, T *a, int lda, RealOf<T> *s, T *u, int ldu, T *vt,          \
                                              int ldvt, T *work, int length, RealOf<T> *, int *wrong)                  \
    {                                                                                                                  \
        return put_gesvd(handle, job_u, job_vt, rows, columns, a, lda, s, u, ldu, vt, ldvt, work, length, wrong);      \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##gesvdjBatched_bufferSize(                                                      \
        Handle *, Job, int rows, int columns, T *, int, RealOf<T> *, T *, int, T *, int, int *length, void *, int)     \
    {                                                                                                                  \
        return needs(length, elements(rows, columns));                                                                 \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##gesvdjBatched(Handle *handle, Job job, int rows, int columns, T *a, int lda,   \
                                                      RealOf<T> *s, T *u, int ldu, T *v, int ldv, T *work, int length, \
                                                      int *wrong, void *, int count)                                   \
    {                                                                                                                  \
        return put_gesvdj(handle, job, rows, columns, a, lda, s, u, ldu, v, ldv, work, length, wrong, count);          \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##syevj##Batched_bufferSize(Handle *, Job, Triangle, int n, const T *, int,      \
                                                                  const RealOf<T> *, int *length, void *, int)         \
    {                                                                                                                  \
        return needs(length, elements(n, n));                                                                          \
    }                                                                                                                  \
    PRETEND_API int cusolverDn##Letter##syevj##Batched(Handle *handle, Job job, Triangle triangle, int n, T *a,        \
                                                       int lda, RealOf<T> *w, T *work, int length, int *wrong, void *, \
                                                       int count)                                                      \
    {                                                                                                                  \
        return put_syevj(handle, job, triangle, n, a, lda, w, work, length, wrong, count);                             \
    }
SPECTRA(S, float, orgqr, syevj)
SPECTRA(D, double, orgqr, syevj)
SPECTRA(C, Complex32, ungqr, heevj)
SPECTRA(Z, Complex64, ungqr, heevj)

#define OF_ITS_KIND(put, ...)                                                                                          \
    switch (kind_a) {                                                                                                  \
    case CUDA_R_32F:                                                                                                   \
        return put<float>(__VA_ARGS__);                                                                                \
    case CUDA_R_64F:                                                                                                   \
        return put<double>(__VA_ARGS__);                                                                               \
    case CUDA_C_32F:                                                                                                   \
        return put<Complex32>(__VA_ARGS__);                                                                            \
    default:                                                                                                           \
        return put<Complex64>(__VA_ARGS__);                                                                            \
    }

PRETEND_API int cusolverDnXsyevd_bufferSize(Handle *, void *, Job, Triangle, long long n, int kind_a, const void *,
                                            long long, int, const void *, int, size_t *on_device, size_t *at_host)
{
    return needs_of_a_kind(kind_a, n, on_device, at_host);
}

PRETEND_API int cusolverDnXsyevd(Handle *handle, void *, Job job, Triangle triangle, long long n, int kind_a, void *a,
                                 long long lda, int kind_w, void *w, int computed_in, void *work, size_t on_device,
                                 void *, size_t at_host, int *wrong)
{
    size_t needed, needed_at_host;
    if (needs_of_a_kind(kind_a, n, &needed, &needed_at_host) || kind_w != real_kind(kind_a) || computed_in != kind_a ||
        lda < n || on_device < needed || at_host < needed_at_host)
        return INVALID_VALUE;
    Room room{work, on_device};
    OF_ITS_KIND(put_syevd, handle, job, triangle, n, a, lda, w, room, wrong)
}

PRETEND_API int cusolverDnXgeev_bufferSize(Handle *, void *, Job left, Job, long long n, int kind_a, const void *,
                                           long long, int, const void *, int, const void *, long long, int,
                                           const void *, long long, int, size_t *on_device, size_t *at_host)
{
    return left == VALUES ? needs_of_a_kind(kind_a, n, on_device, at_host) : INVALID_VALUE;
}

PRETEND_API int cusolverDnXgeev(Handle *handle, void *, Job left, Job right, long long n, int kind_a, void *a,
                                long long lda, int kind_w, void *w, int, void *, long long, int kind_v, void *v,
                                long long ldv, int computed_in, void *work, size_t on_device, void *, size_t at_host,
                                int *wrong)
{
    size_t needed, needed_at_host;
    if (needs_of_a_kind(kind_a, n, &needed, &needed_at_host) || left != VALUES || kind_w != complex_kind(kind_a) ||
        kind_v != kind_a || computed_in != kind_a || lda < n || ldv < n || on_device < needed ||
        at_host < needed_at_host)
        return INVALID_VALUE;
    Room room{work, on_device};
    OF_ITS_KIND(put_geev, handle, right, n, a, lda, w, v, ldv, room, wrong)
}
