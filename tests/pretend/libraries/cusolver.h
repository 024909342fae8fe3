// The handle of the pretend cuSOLVER, and how its work is put on the handle's stream.
#pragma once
#include "on_stream.h"

namespace pretend
{
namespace cusolver
{
constexpr int SUCCESS = 0, INVALID_VALUE = 3, EXECUTION_FAILED = 6;

struct Handle {
    void *stream = nullptr;
};

inline int put(Handle *handle, Work work) { return refused(handle->stream, work) ? EXECUTION_FAILED : SUCCESS; }
} // namespace cusolver
} // namespace pretend
