// Copies between host and device, and filling memory.
//
// Strict about: which side is the device's, by the kind of copy that was asked for; that copies stay within a block; copies
// that wait, in a capture. What comes from pageable memory is read at once, as CUDA stages it, and what goes to it is waited
// for; pinned memory, and what is registered, is read and written when the stream gets there.
#include "device.h"
#include "memory.h"
#include <memory>
#include <string>

using namespace pretend;

namespace
{
bool of_device(const Block *block) { return block && !block->of_host; }

bool beyond(const Block *block, const void *begin, size_t size)
{
    return block && (char *)begin + size > block->begin + block->size;
}

cudaError_t refuse_copy(void *to, const void *from, size_t size, int kind, const char *what)
{
    Block *target = block_of(to), *source = block_of(from);
    bool wrong = kind == cudaMemcpyHostToDevice     ? !of_device(target)
                 : kind == cudaMemcpyDeviceToHost   ? !of_device(source)
                 : kind == cudaMemcpyDeviceToDevice ? !of_device(target) || !of_device(source)
                                                    : false;
    if (size && wrong) {
        fprintf(stderr, "[pretend] %s of kind %d from %p to %p, which are not so\n", what, kind, from, to);
        return fail(cudaErrorInvalidValue, what);
    }
    if (size && (beyond(target, to, size) || beyond(source, from, size))) {
        fprintf(stderr, "[pretend] %s beyond a block's end\n", what);
        return fail(cudaErrorInvalidValue, what);
    }
    return cudaSuccess;
}

cudaError_t copy_rows(void *to, size_t to_step, const void *from, size_t from_step, size_t width, size_t height,
                      cudaStream_t stream)
{
    auto work = [=] {
        for (size_t row = 0; row < height; ++row)
            memmove((char *)to + row * to_step, (char *)from + row * from_step, width);
    };
    return enqueue(stream_of(stream), work, "cudaMemcpy2D");
}
} // namespace

PRETEND_API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cudaMemcpy"))
        return error;
    if (cudaError_t error = refuse_copy(to, from, size, kind, "cudaMemcpy"))
        return error;
    if (cudaError_t error = refuse_implicit("cudaMemcpy"))
        return error;
    finish_blocking();
    memmove(to, from, size);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                                        cudaStream_t handle)
{
    Locked locked;
    if (cudaError_t error = refuse_copy(to, from, size, kind, "cudaMemcpyAsync"))
        return error;
    bool pageable_target = !block_of(to), pageable_source = !block_of(from);
    Kind which = of_device(block_of(to)) && of_device(block_of(from)) ? KERNEL : COPY;
    Stream *stream = stream_of(handle);
    if (stream->capture) {
        if (pageable_target || pageable_source)
            fprintf(stderr, "[pretend] a copy of pageable memory is captured\n");
    } else if (!eager() && pageable_source && size) {
        auto staged = std::make_shared<std::string>((const char *)from, size);
        return enqueue(stream, [=] { memmove(to, staged->data(), size); }, "cudaMemcpyAsync", which);
    }
    if (stream->capture)
        return enqueue(stream, [=] { memmove(to, from, size); }, "cudaMemcpyAsync", which);
    std::vector<std::shared_ptr<int>> used;
    for (Block *block : {block_of(to), block_of(from)})
        if (block && block->registered)
            used.push_back(block->copies);
    for (auto &copies : used)
        ++*copies;
    auto work = [=] {
        memmove(to, from, size);
        for (auto &copies : used)
            --*copies;
    };
    cudaError_t error = enqueue(stream, work, "cudaMemcpyAsync", which);
    if (error)
        for (auto &copies : used)
            --*copies;
    if (!error && pageable_target)
        finish(stream);
    return error;
}

PRETEND_API cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t size)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cudaMemcpyPeer"))
        return error;
    finish_all();
    memmove(to, from, size);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t stream)
{
    Locked locked;
    return enqueue(stream_of(stream), [=] { memmove(to, from, size); }, "cudaMemcpyPeerAsync");
}

PRETEND_API cudaError_t cudaMemset(void *to, int value, size_t size)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cudaMemset"))
        return error;
    return enqueue(stream_of(nullptr), [=] { memset(to, value, size); }, "cudaMemset");
}

PRETEND_API cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    Locked locked;
    return enqueue(stream_of(stream), [=] { memset(to, value, size); }, "cudaMemsetAsync");
}

PRETEND_API cudaError_t cudaMemcpy2D(void *to, size_t to_step, const void *from, size_t from_step, size_t width,
                                     size_t height, cudaMemcpyKind)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cudaMemcpy2D"))
        return error;
    cudaError_t error = copy_rows(to, to_step, from, from_step, width, height, nullptr);
    finish_all();
    return error;
}

PRETEND_API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_step, const void *from, size_t from_step, size_t width,
                                          size_t height, cudaMemcpyKind, cudaStream_t stream)
{
    Locked locked;
    return copy_rows(to, to_step, from, from_step, width, height, stream);
}
