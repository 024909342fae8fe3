// The handle of the pretend cuBLAS, and how its work is put on the handle's stream.
#pragma once
#include "on_stream.h"
#include <cstdio>

namespace pretend
{
namespace cublas
{
constexpr int SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15;

struct Handle {
    void *stream = nullptr;
    int scalars_on_device = 0;
    int math = 0;
    void *workspace = nullptr;
};

inline int put(Handle *handle, Work work)
{
    if (pretend_capturing(handle->stream) && !handle->workspace) {
        fprintf(stderr, "[pretend] cuBLAS is captured without a workspace of its own\n");
        return NOT_SUPPORTED;
    }
    return refused(handle->stream, work) ? EXECUTION_FAILED : SUCCESS;
}
} // namespace cublas
} // namespace pretend
