// float16 and bfloat16 under the names of cuda_fp16.h and cuda_bf16.h, as far as CuPy's headers ask.
#pragma once
#include "numbers.h"
// CuPy's headers are not to read CUDA's.
#define __CUDA_FP16_H__
#define __CUDA_FP16_HPP__
#define __CUDA_BF16_H__
#define __CUDA_BF16_HPP__

struct __half_raw {
    unsigned short x;
};

struct __half {
    unsigned short x;

    __half() {}
    __half(const __half_raw &raw) : x(raw.x) {}
    __half(float value) : x(pretend_to_half(value)) {}
    __half(double value) : x(pretend_to_half_d(value)) {}
    __half(int value) : x(pretend_half_bits((_Float16)value)) {}
    __half(unsigned value) : x(pretend_half_bits((_Float16)value)) {}
    __half(long long value) : x(pretend_half_bits((_Float16)value)) {}
    __half(unsigned long long value) : x(pretend_half_bits((_Float16)value)) {}

    operator float() const { return pretend_from_half(x); }
    operator __half_raw() const { return {x}; }
};
typedef __half half;

static inline unsigned short __half_as_ushort(__half value) { return value.x; }
static inline __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
static inline float __half2float(__half value) { return value; }
static inline __half __float2half(float value) { return __half(value); }
static inline __half __float2half_rn(float value) { return __half(value); }
static inline bool __hisnan(__half value) { return (value.x & 0x7fff) > 0x7c00; }
static inline int __hisinf(__half value) { return value.x == 0x7c00 ? 1 : value.x == 0xfc00 ? -1 : 0; }

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat16 {
    unsigned short x;

    __nv_bfloat16() {}
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : x(raw.x) {}
    __nv_bfloat16(float value) : x(pretend_to_bfloat16(value)) {}
    __nv_bfloat16(double value) : x(pretend_to_bfloat16((float)value)) {}
    __nv_bfloat16(int value) : x(pretend_to_bfloat16((float)value)) {}
    __nv_bfloat16(unsigned value) : x(pretend_to_bfloat16((float)value)) {}
    __nv_bfloat16(long long value) : x(pretend_to_bfloat16((float)value)) {}
    __nv_bfloat16(unsigned long long value) : x(pretend_to_bfloat16((float)value)) {}

    operator float() const { return __uint_as_float((unsigned)x << 16); }
    operator __nv_bfloat16_raw() const { return {x}; }
};

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
static inline bool __hisnan(__nv_bfloat16 value) { return (value.x & 0x7fff) > 0x7f80; }
static inline int __hisinf(__nv_bfloat16 value) { return value.x == 0x7f80 ? 1 : value.x == 0xff80 ? -1 : 0; }
