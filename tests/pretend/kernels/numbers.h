// What a card does with the bits of numbers, and with halves of which only the bits are at hand.
#pragma once
#include "words.h"

template <typename T, typename U> static T pretend_bits(U value)
{
    static_assert(sizeof(T) == sizeof(U), "");
    T out;
    memcpy(&out, &value, sizeof out);
    return out;
}

static inline float __int_as_float(int x) { return pretend_bits<float>(x); }
static inline int __float_as_int(float x) { return pretend_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return pretend_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return pretend_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return pretend_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return pretend_bits<long long>(x); }
static inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return (int)__double_as_longlong(x); }

static inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double(((long long)high << 32) | (unsigned)low);
}

static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __double2int_rn(double x) { return (int)rint(x); }

static inline float pretend_from_half(unsigned short x) { return (float)pretend_bits<_Float16>(x); }
static inline unsigned short pretend_half_bits(_Float16 x) { return pretend_bits<unsigned short>(x); }
static inline unsigned short pretend_to_half(float x) { return pretend_half_bits((_Float16)x); }
static inline unsigned short pretend_to_half_d(double x) { return pretend_half_bits((_Float16)x); }

// Rounded to even.
static inline unsigned short pretend_to_bfloat16(float x)
{
    unsigned wide = __float_as_uint(x);
    return x != x ? 0x7fff : (unsigned short)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }

static inline unsigned __brev(unsigned x)
{
    unsigned out = 0;
    for (int i = 0; i < 32; ++i)
        out |= (x >> i & 1u) << (31 - i);
    return out;
}

template <typename T> static T __ldg(const T *from) { return *from; }
template <typename T> static T __ldcs(const T *from) { return *from; }
template <typename T> static void __stcs(T *to, T value) { *to = value; }
