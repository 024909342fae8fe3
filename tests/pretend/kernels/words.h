// CUDA's words of C++, as the host's compiler can take them, and its vector types as far as CuPy's headers and GT ask.
//
// Shared memory is static: one block runs at a time. Shared memory whose size the launch says is made a pointer by
// compile_kernel.py.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#define __CUDA_ARCH_LIST__ 900
// These headers are not to be read: what they say is here.
#define __CUDA_RUNTIME_H__
#define __VECTOR_TYPES_H__
#define __HOST_DEFINES_H__
#define CUDARTAPI

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __restrict__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__

struct dim3 {
    unsigned x, y, z;
};
struct uint3 {
    unsigned x, y, z;
};
struct int2 {
    int x, y;
};
struct uint2 {
    unsigned x, y;
};
struct float2 {
    float x, y;
};
struct double2 {
    double x, y;
};
struct longlong2 {
    long long x, y;
};
struct ulonglong2 {
    unsigned long long x, y;
};
struct __attribute__((aligned(16))) int4 {
    int x, y, z, w;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};

static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;
static char *pretend_shared;
