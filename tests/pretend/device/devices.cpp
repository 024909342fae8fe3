// Which devices there are, what they say of themselves, and what errors are called.
//
// They have the limits of an H100, so that kernels are launched here as they would be there. All reach each other's memory.
#include "device.h"

using namespace pretend;

namespace
{
constexpr int VERSION = 12090;
constexpr int FIRST_BUS = 0x18;
constexpr int SHARED = 49152, MOST_SHARED = 232448, SHARED_OF_A_PROCESSOR = 233472;
constexpr int THREADS = 1024, THREADS_OF_A_PROCESSOR = 2048, REGISTERS = 65536;
constexpr int GRID = 2147483647, GRID_ACROSS = 65535, BLOCK_DEEP = 64;
constexpr int PROCESSORS = 132, WARP = 32, CLOCK = 1980000, COPY_ENGINES = 3;
constexpr int MEMORY_CLOCK = 2619000, MEMORY_BITS = 5120, CACHE = 52428800;
constexpr int MAJOR = 9, MINOR = 0;
constexpr int LAST_ATTRIBUTE = 145;

const struct {
    cudaDeviceAttr attribute;
    int value;
} ATTRIBUTES[] = {
    {cudaDevAttrMaxThreadsPerBlock, THREADS},
    {cudaDevAttrMaxBlockDimX, THREADS},
    {cudaDevAttrMaxBlockDimY, THREADS},
    {cudaDevAttrMaxBlockDimZ, BLOCK_DEEP},
    {cudaDevAttrMaxGridDimX, GRID},
    {cudaDevAttrMaxGridDimY, GRID_ACROSS},
    {cudaDevAttrMaxGridDimZ, GRID_ACROSS},
    {cudaDevAttrMaxSharedMemoryPerBlock, SHARED},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, WARP},
    {cudaDevAttrMaxPitch, 2147483647},
    {cudaDevAttrMaxRegistersPerBlock, REGISTERS},
    {cudaDevAttrClockRate, CLOCK},
    {cudaDevAttrMultiProcessorCount, PROCESSORS},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrMemoryClockRate, MEMORY_CLOCK},
    {cudaDevAttrGlobalMemoryBusWidth, MEMORY_BITS},
    {cudaDevAttrL2CacheSize, CACHE},
    {cudaDevAttrMaxThreadsPerMultiProcessor, THREADS_OF_A_PROCESSOR},
    {cudaDevAttrAsyncEngineCount, COPY_ENGINES},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrComputeCapabilityMajor, MAJOR},
    {cudaDevAttrComputeCapabilityMinor, MINOR},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_OF_A_PROCESSOR},
    {cudaDevAttrMaxRegistersPerMultiprocessor, REGISTERS},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, MOST_SHARED},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrMemoryPoolsSupported, 1},
};

bool is_none(int device) { return device < 0 || device >= devices(); }
} // namespace

PRETEND_API const char *cudaGetErrorName(cudaError_t error)
{
#define NAMED(name)                                                                                                    \
    case name:                                                                                                         \
        return #name;
    switch (error) {
        NAMED(cudaSuccess)
        NAMED(cudaErrorInvalidValue)
        NAMED(cudaErrorMemoryAllocation)
        NAMED(cudaErrorInvalidDeviceFunction)
        NAMED(cudaErrorNoDevice)
        NAMED(cudaErrorInvalidDevice)
        NAMED(cudaErrorInvalidResourceHandle)
        NAMED(cudaErrorNotReady)
        NAMED(cudaErrorIllegalAddress)
        NAMED(cudaErrorNotSupported)
        NAMED(cudaErrorStreamCaptureUnsupported)
        NAMED(cudaErrorStreamCaptureInvalidated)
        NAMED(cudaErrorStreamCaptureUnjoined)
        NAMED(cudaErrorStreamCaptureIsolation)
        NAMED(cudaErrorStreamCaptureImplicit)
        NAMED(cudaErrorCapturedEvent)
    default:
        return "cudaErrorOther";
    }
}

PRETEND_API const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    default:
        return "as the pretend device says";
    }
}

PRETEND_API cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

PRETEND_API cudaError_t cudaPeekAtLastError() { return last_error; }

PRETEND_API cudaError_t cudaDriverGetVersion(int *version)
{
    *version = VERSION;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

PRETEND_API cudaError_t cudaGetDeviceCount(int *count)
{
    *count = devices();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice, "cudaGetDeviceCount");
}

PRETEND_API cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaSetDevice(int device)
{
    if (is_none(device))
        return fail(cudaErrorInvalidDevice, "cudaSetDevice");
    current_device = device;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceSynchronize()
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe("cudaDeviceSynchronize"))
        return error;
    finish_all();
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (is_none(device))
        return fail(cudaErrorInvalidDevice, "cudaDeviceGetAttribute");
    if ((int)attribute <= 0 || (int)attribute > LAST_ATTRIBUTE)
        return fail(cudaErrorInvalidValue, "cudaDeviceGetAttribute");
    *value = 0;
    for (auto &each : ATTRIBUTES)
        if (each.attribute == attribute)
            *value = each.value;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    if (is_none(device))
        return fail(cudaErrorInvalidDevice, "cudaDeviceGetPCIBusId");
    snprintf(text, length, "0000:%02x:00.0", FIRST_BUS + device);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    int bus = -1;
    sscanf(text, "%*x:%x", &bus);
    if (is_none(bus - FIRST_BUS))
        return fail(cudaErrorInvalidDevice, "cudaDeviceGetByPCIBusId");
    *device = bus - FIRST_BUS;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *told, int device)
{
    if (is_none(device))
        return fail(cudaErrorInvalidDevice, "cudaGetDeviceProperties");
    memset(told, 0, sizeof *told);
    strcpy(told->name, "Pretend H100"); // by this name tests know it
    told->major = MAJOR;
    told->minor = MINOR;
    told->totalGlobalMem = memory_of_a_device();
    told->pciBusID = FIRST_BUS + device;
    told->multiProcessorCount = PROCESSORS;
    told->warpSize = WARP;
    told->clockRate = CLOCK;
    told->memoryClockRate = MEMORY_CLOCK;
    told->memoryBusWidth = MEMORY_BITS;
    told->l2CacheSize = CACHE;
    told->sharedMemPerBlock = SHARED;
    told->sharedMemPerBlockOptin = MOST_SHARED;
    told->sharedMemPerMultiprocessor = SHARED_OF_A_PROCESSOR;
    told->regsPerBlock = told->regsPerMultiprocessor = REGISTERS;
    told->maxThreadsPerBlock = told->maxThreadsDim[0] = told->maxThreadsDim[1] = THREADS;
    told->maxThreadsDim[2] = BLOCK_DEEP;
    told->maxThreadsPerMultiProcessor = THREADS_OF_A_PROCESSOR;
    told->maxGridSize[0] = GRID;
    told->maxGridSize[1] = told->maxGridSize[2] = GRID_ACROSS;
    told->asyncEngineCount = COPY_ENGINES;
    told->unifiedAddressing = told->concurrentKernels = told->cooperativeLaunch = 1;
    told->memoryPoolsSupported = told->canMapHostMemory = told->managedMemory = 1;
    told->singleToDoublePrecisionPerfRatio = 2;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *told, int device)
{
    return cudaGetDeviceProperties_v2(told, device);
}

PRETEND_API cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 1;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
PRETEND_API cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }

PRETEND_API cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit)
{
    *value = 1024;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
PRETEND_API int cudaProfilerStart() { return 0; }
PRETEND_API int cudaProfilerStop() { return 0; }
