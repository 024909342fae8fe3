// What CuPy's module for Thrust calls: sorting, by the host's stable sort, put on the stream.
//
// As CuPy sorts, NaN is after all numbers, and complex numbers are in order of their real parts, then of the imaginary ones.
#include "on_stream.h"
#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cupy/cuda/cupy_thrust.h"

using pretend::Half;
using pretend::Work;
using Shape = std::vector<ptrdiff_t>;

namespace
{
template <typename T> bool is_nan(T x) { return x != x; }
template <typename T> bool is_nan(std::complex<T> x) { return is_nan(x.real()) || is_nan(x.imag()); }

template <typename T> bool before(T a, T b) { return is_nan(b) ? !is_nan(a) : a < b; }
template <> bool before(Half a, Half b) { return before((float)a, (float)b); }

template <typename T> bool before(std::complex<T> a, std::complex<T> b)
{
    if (is_nan(a) || is_nan(b))
        return !is_nan(a);
    return a.real() != b.real() ? a.real() < b.real() : a.imag() < b.imag();
}

// Calls `function` with a null pointer to the type that CuPy gives this number.
template <typename F> void with_type(int number, F function)
{
    switch (number) {
#define TYPE(value, T)                                                                                                 \
    case value:                                                                                                        \
        return function((T *)nullptr);
        TYPE(0, int8_t)
        TYPE(1, uint8_t)
        TYPE(2, int16_t)
        TYPE(3, uint16_t)
        TYPE(4, int32_t)
        TYPE(5, uint32_t)
        TYPE(6, int64_t)
        TYPE(7, uint64_t)
        TYPE(8, Half)
        TYPE(9, float)
        TYPE(10, double)
        TYPE(11, std::complex<float>)
        TYPE(12, std::complex<double>)
        TYPE(13, bool)
    }
}

void put(intptr_t stream, Work work) { pretend::refused((void *)stream, work); }

// How many rows, and how long each is.
struct Rows {
    size_t count = 1, length;

    explicit Rows(const Shape &shape) : length(shape.back())
    {
        for (size_t i = 0; i + 1 < shape.size(); ++i)
            count *= shape[i];
    }
};

void number(size_t *indices, size_t length)
{
    for (size_t i = 0; i < length; ++i)
        indices[i] = i;
}

template <typename T> void argsort(T *row, size_t *indices, size_t length)
{
    number(indices, length);
    std::stable_sort(indices, indices + length, [=](size_t a, size_t b) { return before(row[a], row[b]); });
    std::vector<T> copy(row, row + length);
    for (size_t i = 0; i < length; ++i)
        row[i] = copy[indices[i]];
}
} // namespace

void thrust_sort(int type, void *data, size_t *, const Shape &shape, intptr_t stream, void *)
{
    Rows rows(shape);
    with_type(type, [=](auto *typed) {
        using T = std::remove_pointer_t<decltype(typed)>;
        put(stream, [=] {
            for (size_t row = 0; row < rows.count; ++row) {
                T *begin = (T *)data + row * rows.length;
                std::stable_sort(begin, begin + rows.length, [](T a, T b) { return before(a, b); });
            }
        });
    });
}

void thrust_lexsort(int type, size_t *indices, void *keys, size_t count, size_t length, intptr_t stream, void *)
{
    with_type(type, [=](auto *typed) {
        using T = std::remove_pointer_t<decltype(typed)>;
        put(stream, [=] {
            number(indices, length);
            for (size_t i = 0; i < count; ++i) {
                const T *key = (const T *)keys + i * length;
                std::stable_sort(indices, indices + length, [=](size_t a, size_t b) { return before(key[a], key[b]); });
            }
        });
    });
}

void thrust_argsort(int type, size_t *indices, void *data, void *, const Shape &shape, intptr_t stream, void *)
{
    Rows rows(shape);
    with_type(type, [=](auto *typed) {
        using T = std::remove_pointer_t<decltype(typed)>;
        put(stream, [=] {
            for (size_t row = 0; row < rows.count; ++row)
                argsort((T *)data + row * rows.length, indices + row * rows.length, rows.length);
        });
    });
}
