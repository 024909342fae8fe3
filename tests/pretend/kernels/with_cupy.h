// What stands before a kernel that includes CuPy's headers, with these headers. Compiled ahead, once.
#pragma once
#include "without_cupy.h"

#include "halves.h"

#include <cupy/complex.cuh>

#include <cupy/carray.cuh>

#include <cupy/float16.cuh>

#include <cupy/bfloat16.cuh>

#include <cupy/atomics.cuh>

#include <cupy/math_constants.h>
