// Factors of matrices, and equations solved by them, as LAPACK has them: columns one after the other, pivots from 1.
//
// By the plain algorithms of any textbook, without blocks. What they find of a matrix that is no good is LAPACK's too: the
// number, from 1, of the column where it shows.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>

namespace pretend
{
enum Transposed { AS_IT_IS, TRANSPOSED, CONJUGATED };
enum Triangle { LOWER, UPPER };

template <typename T> T conjugate(T x) { return x; }
template <typename T> std::complex<T> conjugate(std::complex<T> x) { return std::conj(x); }

// A matrix where it lies. `op` says how it is looked at.
template <typename T> struct Matrix {
    T *begin;
    long long step;

    T &operator()(int row, int column) const { return begin[row + column * step]; }

    T seen(int op, int row, int column) const
    {
        T found = op == AS_IT_IS ? (*this)(row, column) : (*this)(column, row);
        return op == CONJUGATED ? conjugate(found) : found;
    }

    void swap_rows(int one, int other, int columns) const
    {
        for (int column = 0; column < columns; ++column)
            std::swap((*this)(one, column), (*this)(other, column));
    }
};

// L and U in place of a matrix, with the largest of each column as pivot, or none where there is no room for pivots.
template <typename T> int factor_lu(Matrix<T> a, int rows, int columns, int *pivots)
{
    int singular = 0;
    for (int j = 0; j < std::min(rows, columns); ++j) {
        int pivot = j;
        for (int i = j + 1; pivots && i < rows; ++i)
            if (std::abs(a(i, j)) > std::abs(a(pivot, j)))
                pivot = i;
        if (pivots)
            pivots[j] = pivot + 1;
        a.swap_rows(j, pivot, columns);
        if (a(j, j) == T(0)) {
            singular = singular ? singular : j + 1;
            continue;
        }
        for (int i = j + 1; i < rows; ++i) {
            a(i, j) /= a(j, j);
            for (int k = j + 1; k < columns; ++k)
                a(i, k) -= a(i, j) * a(j, k);
        }
    }
    return singular;
}

// x in place of b, where a triangle of `a`, seen by `op`, times x is b.
template <typename T>
void solve_triangle(Matrix<T> a, int op, Triangle seen, bool ones, int n, Matrix<T> b, int columns)
{
    for (int column = 0; column < columns; ++column)
        for (int at = 0; at < n; ++at) {
            int i = seen == LOWER ? at : n - 1 - at;
            T rest = b(i, column);
            for (int k = seen == LOWER ? 0 : i + 1; k < (seen == LOWER ? i : n); ++k)
                rest -= a.seen(op, i, k) * b(k, column);
            b(i, column) = ones ? rest : rest / a.seen(op, i, i);
        }
}

template <typename T> void solve_by_lu(Matrix<T> lu, int op, const int *pivots, int n, Matrix<T> b, int columns)
{
    if (op == AS_IT_IS) {
        for (int i = 0; pivots && i < n; ++i)
            b.swap_rows(i, pivots[i] - 1, columns);
        solve_triangle(lu, op, LOWER, true, n, b, columns);
        solve_triangle(lu, op, UPPER, false, n, b, columns);
        return;
    }
    solve_triangle(lu, op, LOWER, false, n, b, columns); // U, seen transposed
    solve_triangle(lu, op, UPPER, true, n, b, columns);
    for (int i = n - 1; pivots && i >= 0; --i)
        b.swap_rows(i, pivots[i] - 1, columns);
}

// Cholesky's factor in place of one triangle; the other is not looked at.
template <typename T> int factor_cholesky(Matrix<T> a, Triangle triangle, int n)
{
    auto lower = [=](int row, int column) -> T {
        return triangle == LOWER ? a(row, column) : conjugate(a(column, row));
    };
    for (int j = 0; j < n; ++j)
        for (int i = j; i < n; ++i) {
            T rest = lower(i, j);
            for (int k = 0; k < j; ++k)
                rest -= lower(i, k) * conjugate(lower(j, k));
            if (i == j && !(std::real(rest) > 0))
                return j + 1;
            T value = i == j ? T(std::sqrt(std::real(rest))) : rest / lower(j, j);
            (triangle == LOWER ? a(i, j) : a(j, i)) = triangle == LOWER ? value : conjugate(value);
        }
    return 0;
}
} // namespace pretend
