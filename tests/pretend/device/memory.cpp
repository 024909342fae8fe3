// Memory of the pretend device, pinned memory, and what processes map of each other's.
//
// Strict about: the limit of what a device has; what is freed twice, or is not the beginning of a block; new memory is all
// ones, so that whoever reads what nobody wrote finds NaN; a process cannot open what it exported itself. Registered memory is
// whole pages, none of them pinned already; it is unregistered as it was registered, and when no copy uses it any more.
// Left out: events between processes, pools of the driver's own (cudaMallocAsync),
// and lending blocks that are smaller than 64 KiB.
#include "memory.h"
#include "device.h"
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

using namespace pretend;

namespace
{
constexpr size_t PAGE = 4096;
constexpr size_t LEAST_SHARED = 1 << 16; // smaller blocks are not lent to other processes, and cost no file
constexpr size_t MOST_FILLED = 64u << 20;

std::map<char *, Block> blocks;
std::map<int, size_t> used;

struct Exported {
    int process, file;
    size_t size, mapped;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t), "a handle has room for it");

int memory_file(size_t size)
{
    int file = memfd_create("pretend", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, size)) {
        close(file);
        return -1;
    }
    return file;
}

void *map(size_t size, int file)
{
    int kind = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, kind, file, 0);
    return begin == MAP_FAILED ? nullptr : begin;
}

cudaError_t allocate(void **to, size_t size, bool of_host, const char *what)
{
    Locked locked;
    if (cudaError_t error = refuse_unsafe(what))
        return error;
    *to = nullptr;
    if (!size)
        return cudaSuccess;
    size_t mapped = (size + PAGE - 1) & ~(PAGE - 1);
    if (!of_host && used[current_device] + mapped > memory_of_a_device())
        return fail(cudaErrorMemoryAllocation, what);
    int file = !of_host && size >= LEAST_SHARED ? memory_file(mapped) : -1;
    void *begin = map(mapped, file);
    if (!begin) {
        if (file >= 0)
            close(file);
        return fail(cudaErrorMemoryAllocation, what);
    }
    if (!of_host) {
        used[current_device] += mapped;
        if (size <= MOST_FILLED)
            memset(begin, 0xff, size);
    }
    blocks[(char *)begin] = {(char *)begin, size, mapped, file, current_device, of_host, false, false};
    *to = begin;
    return cudaSuccess;
}

cudaError_t forget(void *address, const char *what)
{
    auto found = blocks.find((char *)address);
    if (found == blocks.end() || found->second.registered)
        return fail(cudaErrorInvalidValue, what);
    finish_all();
    Block block = found->second;
    munmap(block.begin, block.mapped);
    if (block.file >= 0)
        close(block.file);
    if (!block.of_host && !block.opened)
        used[block.device] -= block.mapped;
    blocks.erase(found);
    return cudaSuccess;
}

cudaError_t release(void *address, const char *what)
{
    Locked locked;
    if (!address)
        return cudaSuccess;
    if (cudaError_t error = refuse_unsafe(what))
        return error;
    return forget(address, what);
}
} // namespace

Block *pretend::block_of(const void *address)
{
    auto after = blocks.upper_bound((char *)address);
    if (after == blocks.begin())
        return nullptr;
    Block &block = (--after)->second;
    return (char *)address < block.begin + block.size ? &block : nullptr;
}

PRETEND_API cudaError_t cudaMalloc(void **to, size_t size) { return allocate(to, size, false, "cudaMalloc"); }
PRETEND_API cudaError_t cudaMallocManaged(void **to, size_t size, unsigned) { return cudaMalloc(to, size); }
PRETEND_API cudaError_t cudaFree(void *address) { return release(address, "cudaFree"); }

PRETEND_API cudaError_t cudaHostAlloc(void **to, size_t size, unsigned)
{
    return allocate(to, size, true, "cudaHostAlloc");
}

PRETEND_API cudaError_t cudaFreeHost(void *address) { return release(address, "cudaFreeHost"); }

PRETEND_API cudaError_t cudaHostRegister(void *address, size_t size, unsigned)
{
    const char *what = "cudaHostRegister";
    Locked locked;
    if (cudaError_t error = refuse_unsafe(what))
        return error;
    char *begin = (char *)address;
    if (!size || (size_t)begin % PAGE || size % PAGE)
        return fail(cudaErrorInvalidValue, what);
    size_t locked_bytes = size;
    for (auto &[at, block] : blocks) {
        if (block.of_host && begin < at + block.mapped && at < begin + size)
            return fail(cudaErrorHostMemoryAlreadyRegistered, what);
        locked_bytes += block.registered ? block.size : 0;
    }
    if (locked_bytes > most_registered())
        return fail(cudaErrorMemoryAllocation, what);
    blocks[begin] = {begin, size, size, -1, current_device, true, false, true};
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaHostUnregister(void *address)
{
    const char *what = "cudaHostUnregister";
    Locked locked;
    if (cudaError_t error = refuse_unsafe(what))
        return error;
    auto found = blocks.find((char *)address);
    if (found == blocks.end() || !found->second.registered)
        return fail(cudaErrorHostMemoryNotRegistered, what);
    if (*found->second.copies) {
        fprintf(stderr, "[pretend] %s of memory that copies still use\n", what);
        return fail(cudaErrorInvalidValue, what);
    }
    blocks.erase(found);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    Locked locked;
    *total = memory_of_a_device();
    *free = *total - used[current_device];
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *told, const void *address)
{
    Locked locked;
    memset(told, 0, sizeof *told);
    Block *block = block_of(address);
    if (!block) {
        told->type = cudaMemoryTypeUnregistered;
        told->device = -1;
        told->hostPointer = (void *)address;
        return cudaSuccess;
    }
    told->type = block->of_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    told->device = block->device;
    told->devicePointer = (void *)address;
    if (block->of_host)
        told->hostPointer = (void *)address;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address)
{
    Locked locked;
    Block *block = block_of(address);
    if (!block || block->file < 0)
        return fail(cudaErrorInvalidValue, "cudaIpcGetMemHandle");
    Exported told = {getpid(), block->file, block->size, block->mapped};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &told, sizeof told);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaIpcOpenMemHandle(void **to, cudaIpcMemHandle_t handle, unsigned)
{
    Locked locked;
    Exported told;
    memcpy(&told, &handle, sizeof told);
    if (told.process == getpid())
        return fail(cudaErrorDeviceUninitialized, "cudaIpcOpenMemHandle of one's own");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", told.process, told.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return fail(cudaErrorInvalidValue, "cudaIpcOpenMemHandle");
    *to = map(told.mapped, file);
    if (!*to) {
        close(file);
        return fail(cudaErrorMemoryAllocation, "cudaIpcOpenMemHandle");
    }
    blocks[(char *)*to] = {(char *)*to, told.size, told.mapped, file, current_device, false, true, false};
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaIpcCloseMemHandle(void *address)
{
    Locked locked;
    return forget(address, "cudaIpcCloseMemHandle");
}

PRETEND_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *, cudaEvent_t)
{
    return fail(cudaErrorNotSupported, "cudaIpcGetEventHandle");
}

PRETEND_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *, cudaIpcEventHandle_t)
{
    return fail(cudaErrorNotSupported, "cudaIpcOpenEventHandle");
}
