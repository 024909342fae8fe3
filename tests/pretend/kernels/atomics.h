// Atomic operations: plain ones, since one thread runs at a time.
#pragma once
#include "words.h"

template <typename T> static T pretend_replace(T *at, T value)
{
    T before = *at;
    *at = value;
    return before;
}

template <typename T> static T atomicAdd(T *at, std::enable_if_t<std::is_arithmetic_v<T>, T> value)
{
    return pretend_replace(at, T(*at + value));
}

template <typename T> static T atomicSub(T *at, T value) { return pretend_replace(at, T(*at - value)); }
template <typename T> static T atomicExch(T *at, T value) { return pretend_replace(at, value); }

template <typename T> static T atomicCAS(T *at, T expected, T value)
{
    return pretend_replace(at, *at == expected ? value : *at);
}

#define PRETEND_ATOMICS(T)                                                                                             \
    static inline T atomicMax(T *at, T value) { return pretend_replace(at, *at < value ? value : *at); }               \
    static inline T atomicMin(T *at, T value) { return pretend_replace(at, value < *at ? value : *at); }               \
    static inline T atomicAnd(T *at, T value) { return pretend_replace(at, (T)(*at & value)); }                        \
    static inline T atomicOr(T *at, T value) { return pretend_replace(at, (T)(*at | value)); }                         \
    static inline T atomicXor(T *at, T value) { return pretend_replace(at, (T)(*at ^ value)); }
PRETEND_ATOMICS(int)
PRETEND_ATOMICS(unsigned)
PRETEND_ATOMICS(long long)
PRETEND_ATOMICS(unsigned long long)
