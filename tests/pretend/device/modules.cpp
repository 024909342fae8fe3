// The driver's part: modules, their functions, and launches.
//
// A module is a shared object that compile_kernel.py made, with a table of its kernels. Arguments are copied when a kernel is
// launched, as CUDA copies them. Strict about: grids, blocks and shared memory beyond what a card takes; streams
// of another device; loading a module in a
// capture. Left out: arguments in one buffer (`extra`), and memory that kernels reach and should not.
#include "device.h"
#include <dlfcn.h>
#include <memory>
#include <string>

using namespace pretend;

namespace
{
constexpr unsigned MOST_THREADS = 1024, MOST_ACROSS = 65535, MOST_SHARED = 232448;
const char IMAGE[] = "PRETEND "; // what nvrtc.cpp gives for compiled code: this, the path of a shared object, a newline

// As kernels/launching.h makes it.
struct Entry {
    const char *name;
    int count;
    const size_t *sizes;
    void (*launch)(const unsigned *, void **, size_t);
};

struct Module {
    void *object;
};

struct Function {
    std::string name;
    Entry *entry;
};

bool too_large(const unsigned *dims, unsigned shared)
{
    for (int i = 0; i < 6; ++i)
        if (!dims[i])
            return true;
    bool grid = dims[1] > MOST_ACROSS || dims[2] > MOST_ACROSS;
    return grid || (unsigned long long)dims[3] * dims[4] * dims[5] > MOST_THREADS || shared > MOST_SHARED;
}
} // namespace

PRETEND_API CUresult cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_NOT_FOUND       ? "CUDA_ERROR_NOT_FOUND"
            : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                                : cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_NOT_FOUND ? "named symbol not found" : cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
PRETEND_API CUresult cuDriverGetVersion(int *version) { return (CUresult)cudaDriverGetVersion(version); }

// One context for each device, which is always there.
PRETEND_API CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)(size_t)(0x100 + current_device);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuCtxGetDevice(int *device)
{
    *device = current_device;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuStreamGetCtx(CUstream, CUcontext *context) { return cuCtxGetCurrent(context); }
PRETEND_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuModuleLoad(CUmodule *to, const char *path)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cuModuleLoad"))
        return (CUresult)error;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        fprintf(stderr, "[pretend] %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *to = (CUmodule) new Module{object};
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuModuleLoadData(CUmodule *to, const void *data)
{
    const char *image = (const char *)data;
    if (strncmp(image, IMAGE, strlen(IMAGE))) {
        fprintf(stderr, "[pretend] a module that was not compiled for the pretend device\n");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    image += strlen(IMAGE);
    return cuModuleLoad(to, std::string(image, strchr(image, '\n')).c_str());
}

// The object stays loaded: its kernels may still be in a queue or a graph.
PRETEND_API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name)
{
    Locked locked;
    Entry *entry = (Entry *)dlsym(((Module *)module)->object, "pretend_table");
    for (; entry && entry->name; ++entry)
        if (!strcmp(entry->name, name)) {
            *to = (CUfunction) new Function{name, entry};
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

PRETEND_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *to, size_t *size, CUmodule module, const char *name)
{
    Locked locked;
    void *found = dlsym(((Module *)module)->object, name);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    *to = (CUdeviceptr)found;
    *size = 0;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuLaunchKernel(CUfunction launched, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                    CUstream stream, void **arguments, void **extra)
{
    Locked locked;
    Function *function = (Function *)launched;
    const char *name = function->name.c_str();
    std::vector<unsigned> dims = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    if (too_large(dims.data(), shared)) {
        fprintf(stderr, "[pretend] %s: no card launches grid %u %u %u, block %u %u %u, shared memory %u\n", name,
                grid_x, grid_y, grid_z, block_x, block_y, block_z, shared);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (stream_of(stream)->device != current_device) {
        fprintf(stderr, "[pretend] %s: launched on a stream of device %d, and %d is current\n", name,
                stream_of(stream)->device, current_device);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    Entry *entry = function->entry;
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (int i = 0; i < entry->count; ++i)
        values->emplace_back((char *)arguments[i], (char *)arguments[i] + entry->sizes[i]);
    PRETEND_TRACE("launch %s on %p", name, (void *)stream);
    auto work = [=] {
        std::vector<void *> pointers;
        for (auto &value : *values)
            pointers.push_back(value.data());
        entry->launch(dims.data(), pointers.data(), shared);
    };
    return (CUresult)enqueue(stream_of(stream), work, name);
}

PRETEND_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                               CUstream stream, void **arguments)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments,
                          nullptr);
}

PRETEND_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction)
{
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? MOST_THREADS
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                  : 0;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction, int threads, size_t)
{
    *blocks = 2048 / (threads ? threads : 1);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction, CUoccupancyB2DSize, size_t,
                                                      int)
{
    *grid = 264;
    *block = MOST_THREADS;
    return CUDA_SUCCESS;
}
