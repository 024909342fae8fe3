// NCCL of the pretend device: communicators of one rank, whose collectives are copies, put on the stream.
//
// More ranks are refused, as NCCL refuses two on one card. Left out: everything that is between ranks.
#include "on_stream.h"

using Stream = void *;

namespace
{
constexpr int SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5;
constexpr int VERSION = 22501;
constexpr size_t WIDTHS[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2}; // by type, from int8 to bfloat16
constexpr int TYPES = sizeof WIDTHS / sizeof *WIDTHS;
constexpr int OPERATIONS = 5;

struct Id {
    char bytes[128];
};

struct Communicator {};

int join(Communicator **to, int count)
{
    if (count > 1)
        return INVALID_USAGE;
    *to = new Communicator;
    return SUCCESS;
}

int copy(const void *from, void *to, size_t count, int type, Stream stream)
{
    if (type < 0 || type >= TYPES)
        return INVALID_ARGUMENT;
    size_t size = count * WIDTHS[type];
    return pretend::refused(stream, [=] { memmove(to, from, size); }) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}
} // namespace

PRETEND_API int ncclGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}

PRETEND_API const char *ncclGetErrorString(int error)
{
    return error == INVALID_USAGE ? "invalid usage (run with NCCL_DEBUG=WARN for details)" : "as the pretend NCCL says";
}

PRETEND_API int ncclGetUniqueId(Id *id)
{
    memset(id, 7, sizeof *id);
    return SUCCESS;
}

PRETEND_API int ncclCommInitRankConfig(Communicator **to, int count, Id, int, void *) { return join(to, count); }
PRETEND_API int ncclCommInitRank(Communicator **to, int count, Id, int) { return join(to, count); }
PRETEND_API int ncclCommInitAll(Communicator **to, int count, const int *) { return join(to, count); }

PRETEND_API int ncclCommDestroy(Communicator *communicator)
{
    delete communicator;
    return SUCCESS;
}

PRETEND_API int ncclCommAbort(Communicator *communicator) { return ncclCommDestroy(communicator); }

PRETEND_API int ncclCommGetAsyncError(Communicator *, int *error)
{
    *error = SUCCESS;
    return SUCCESS;
}

PRETEND_API int ncclCommCount(Communicator *, int *count)
{
    *count = 1;
    return SUCCESS;
}

PRETEND_API int ncclCommCuDevice(Communicator *, int *device)
{
    *device = 0;
    return SUCCESS;
}

PRETEND_API int ncclCommUserRank(Communicator *, int *rank)
{
    *rank = 0;
    return SUCCESS;
}

PRETEND_API int ncclGroupStart() { return SUCCESS; }
PRETEND_API int ncclGroupEnd() { return SUCCESS; }

PRETEND_API int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Communicator *,
                              Stream stream)
{
    return operation < OPERATIONS ? copy(from, to, count, type, stream) : INVALID_ARGUMENT;
}

PRETEND_API int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, Communicator *,
                           Stream stream)
{
    return operation < OPERATIONS && root == 0 ? copy(from, to, count, type, stream) : INVALID_ARGUMENT;
}

PRETEND_API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Communicator *,
                                  Stream stream)
{
    return operation < OPERATIONS ? copy(from, to, count, type, stream) : INVALID_ARGUMENT;
}

PRETEND_API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *,
                              Stream stream)
{
    return root == 0 ? copy(from, to, count, type, stream) : INVALID_ARGUMENT;
}

PRETEND_API int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *, Stream stream)
{
    return copy(from, to, count, type, stream);
}
