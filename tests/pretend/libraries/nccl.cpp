// NCCL of the pretend device, between threads and processes of one machine: what ranks send each other are files in a folder
// of their communicator's.
//
// Calls are on streams as kernels are. One that is at the front of its stream posts a letter to each rank that has a part in it,
// and is done when all of theirs have come. A device goes on by itself, whether its own process waits for it or another: so
// wherever a letter is for a call that nobody waits for, a thread does.
//
// Strict about: two ranks on one device; streams of another device; ranks whose calls differ, which CUDA's would hang or write
// over each other; memory of what is given up, in which nothing is right. Sums are in an order of their own, and the largest
// and the smallest of floats ignore NaN. Left out: captures, several hosts, and what is not here, which build.py makes to refuse.
#include "nccl_letters.h"
#include <condition_variable>
#include <csignal>
#include <cuda_runtime_api.h>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>
#include <utility>

using namespace pretend;
using namespace pretend::nccl;
using Handle = std::shared_ptr<Communicator>;
using Stream = void *;

namespace
{
enum Operator { SUM, PRODUCT, LARGEST, SMALLEST, OPERATORS };
enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, PAIR };
constexpr int VERSION = 22501;
constexpr int PAUSE = 500; // microseconds
const fs::path FOLDER = fs::path(PRETEND_BUILT) / "nccl";

struct Id {
    char bytes[128];
};

using Shared = std::shared_ptr<Operation>;

// Never freed: the thread goes on while the process ends.
std::mutex &calls = *new std::mutex;
std::condition_variable &woken = *new std::condition_variable;
std::list<Shared> &pending = *new std::list<Shared>;
thread_local int groups = 0;
thread_local std::vector<Shared> grouped;

// Where others wait for a call, go on with its stream.
void go_on()
{
    std::unique_lock<std::mutex> lock(calls);
    for (;;) {
        woken.wait(lock, [] { return !pending.empty(); });
        std::list<Shared> now = pending;
        lock.unlock();
        for (const Shared &operation : now)
            if (!operation->done && operation->wanted())
                pretend_advance(operation->stream, operation->told);
        usleep(PAUSE);
        lock.lock();
        pending.remove_if([](const Shared &operation) { return operation->done.load(); });
    }
}

int put(Shared operation)
{
    Stream stream = operation->stream;
    if (pretend_device_of(stream) != operation->communicator->device || pretend_capturing(stream)) {
        fprintf(stderr, "[pretend] NCCL: a stream of another device, or that captures\n");
        return INVALID_USAGE;
    }
    static std::once_flag once;
    std::call_once(once, [] { std::thread(go_on).detach(); });
    auto attempt = [](void *told) -> int { return (*(Shared *)told)->attempt(); };
    auto forget = [](void *told) { delete (Shared *)told; };
    if (pretend_enqueue_until(stream, attempt, new Shared(operation), forget))
        return UNHANDLED_CUDA_ERROR;
    operation->told = pretend_told(stream);
    std::lock_guard<std::mutex> lock(calls);
    pending.push_back(operation);
    woken.notify_one();
    return SUCCESS;
}

int add(const Handle &communicator, Stream stream, Call call)
{
    if (!groups) {
        Shared alone(new Operation{communicator, stream, {call}});
        return put(alone);
    }
    for (const Shared &operation : grouped)
        if (operation->communicator == communicator && operation->stream == stream) {
            operation->calls.push_back(call);
            return SUCCESS;
        }
    grouped.emplace_back(new Operation{communicator, stream, {call}});
    return SUCCESS;
}

template <typename T> T combined(int operation, T x, T y)
{
    bool is_less = x != x || x < y; // NaN is neither the largest nor the smallest
    switch (operation) {
    case SUM:
        return T(x + y);
    case PRODUCT:
        return T(x * y);
    case LARGEST:
        return is_less ? y : x;
    default:
        return is_less && x == x ? x : y != y ? x : y;
    }
}

template <typename T> void reduce_as(const Call &call)
{
    for (size_t i = 0; i < call.facts.count; ++i) {
        const std::vector<Letter> &letters = call.letters;
        T found = ((const T *)letters.back().data.data())[i];
        for (size_t j = letters.size() - 1; j-- > 0;)
            found = combined(call.facts.operation, found, ((const T *)letters[j].data.data())[i]);
        ((T *)call.to)[i] = found;
    }
}

void reduce(const Call &call)
{
    using Function = void (*)(const Call &);
    static const Function by_type[] = {reduce_as<int8_t>,  reduce_as<uint8_t>,  reduce_as<int32_t>, reduce_as<uint32_t>,
                                       reduce_as<int64_t>, reduce_as<uint64_t>, reduce_as<Half>,    reduce_as<float>,
                                       reduce_as<double>,  reduce_as<Bfloat16>};
    by_type[call.facts.type](call);
}

void gather(const Call &call)
{
    for (const Letter &letter : call.letters)
        memcpy(call.to + letter.peer * letter.data.size(), letter.data.data(), letter.data.size());
}

void nothing(const Call &) {}

// A call that all ranks make: what goes from which rank to which is said by `goes`, as where it begins and how long it is.
struct Span {
    const char *from;
    size_t bytes;
};

int collective(const Handle &of, const Facts &facts, char *to, size_t written, std::function<Span(int)> goes,
               std::function<bool(int)> takes_part, std::function<void(const Call &)> end, Stream stream)
{
    bool sound = facts.type >= 0 && facts.type < TYPES && facts.operation < OPERATORS && facts.root < of->size;
    if (!sound)
        return INVALID_ARGUMENT;
    Call call{facts, to, written, {}, end};
    long long number = ++of->collectives;
    for (int peer = 0; peer < of->size; ++peer)
        if (takes_part(peer)) {
            auto name = [&](int source, int target) {
                return of->folder /
                       (std::to_string(source) + "-" + std::to_string(target) + "-all-" + std::to_string(number));
            };
            Span span = goes(peer);
            call.letters.push_back({peer, name(of->rank, peer), name(peer, of->rank), span.from, span.bytes});
        }
    return add(of, stream, call);
}

int pair(const Handle &of, bool sends, char *memory, size_t count, int type, int peer, Stream stream)
{
    if (type < 0 || type >= TYPES || peer < 0 || peer >= of->size || peer == of->rank)
        return INVALID_ARGUMENT;
    Facts facts{PAIR, type, 0, 0, count};
    long long number = sends ? ++of->sent[peer] : ++of->received[peer];
    std::string way = sends ? std::to_string(of->rank) + "-" + std::to_string(peer)
                            : std::to_string(peer) + "-" + std::to_string(of->rank);
    fs::path data = of->folder / (way + "-data-" + std::to_string(number));
    fs::path ready = of->folder / (way + "-ready-" + std::to_string(number));
    auto end = [](const Call &call) { memcpy(call.to, call.letters[0].data.data(), call.written); };
    Call call{facts, memory, sends ? 0 : facts.bytes(), {}, end};
    call.letters.push_back({peer, sends ? data : ready, sends ? ready : data, memory, sends ? facts.bytes() : 0});
    return add(of, stream, call);
}

struct Member {
    int device = -1, process = 0;
};

Member member_in(const fs::path &file)
{
    Member found;
    std::ifstream(file) >> found.device >> found.process;
    return found;
}

// What processes that were killed have left.
void clean()
{
    std::error_code ignored;
    for (const fs::directory_entry &folder : fs::directory_iterator(FOLDER, ignored)) {
        int joined = 0, gone = 0;
        for (const fs::directory_entry &file : fs::directory_iterator(folder, ignored))
            if (file.path().extension() == ".joined") {
                joined += 1;
                gone += kill(member_in(file).process, 0) != 0;
            }
        if (joined && joined == gone)
            fs::remove_all(folder, ignored);
    }
}

// Waits for all ranks, for ever if one does not come.
int join(Handle **to, int count, const Id &id, int rank)
{
    if (rank < 0 || rank >= count)
        return INVALID_ARGUMENT;
    char name[33];
    for (int i = 0; i < 16; ++i)
        snprintf(name + 2 * i, 3, "%02x", (unsigned char)id.bytes[i]);
    Handle made(new Communicator{FOLDER / name, count, rank, 0});
    fs::create_directories(made->folder);
    cudaGetDevice(&made->device);
    auto joined = [&](int i) { return made->folder / (std::to_string(i) + ".joined"); };
    appear(joined(rank), std::to_string(made->device) + " " + std::to_string(getpid()));
    for (int i = 0; i < count; ++i)
        while (!fs::exists(joined(i)))
            usleep(PAUSE);
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < i; ++j)
            if (member_in(joined(i)).device == member_in(joined(j)).device) {
                fprintf(stderr, "[pretend] NCCL: ranks %d and %d are on one device\n", i, j);
                return INVALID_USAGE;
            }
    *to = new Handle(made);
    return SUCCESS;
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
    clean();
    std::random_device random;
    for (char &each : id->bytes)
        each = (char)random();
    return SUCCESS;
}

PRETEND_API int ncclCommInitRankConfig(Handle **to, int count, Id id, int rank, void *)
{
    return join(to, count, id, rank);
}

PRETEND_API int ncclCommDestroy(Handle *of)
{
    delete of;
    return SUCCESS;
}

PRETEND_API int ncclCommAbort(Handle *of)
{
    (*of)->ended = true;
    return ncclCommDestroy(of);
}

PRETEND_API int ncclCommGetAsyncError(Handle *of, int *error)
{
    *error = (*of)->error;
    return SUCCESS;
}

PRETEND_API int ncclCommCount(Handle *of, int *count)
{
    *count = (*of)->size;
    return SUCCESS;
}

PRETEND_API int ncclCommCuDevice(Handle *of, int *device)
{
    *device = (*of)->device;
    return SUCCESS;
}

PRETEND_API int ncclCommUserRank(Handle *of, int *rank)
{
    *rank = (*of)->rank;
    return SUCCESS;
}

PRETEND_API int ncclGroupStart()
{
    groups += 1;
    return SUCCESS;
}

PRETEND_API int ncclGroupEnd()
{
    if (!groups)
        return INVALID_USAGE;
    if (--groups)
        return SUCCESS;
    int status = SUCCESS;
    for (const Shared &operation : std::exchange(grouped, {}))
        if (int wrong = put(operation))
            status = wrong;
    return status;
}

PRETEND_API int ncclAllReduce(const char *from, char *to, size_t count, int type, int operation, Handle *of,
                              Stream stream)
{
    Facts facts{ALL_REDUCE, type, operation, 0, count};
    auto goes = [=](int) -> Span { return {from, facts.bytes()}; };
    return collective(*of, facts, to, facts.bytes(), goes, [](int) { return true; }, reduce, stream);
}

PRETEND_API int ncclReduce(const char *from, char *to, size_t count, int type, int operation, int root, Handle *of,
                           Stream stream)
{
    Facts facts{REDUCE, type, operation, root, count};
    int rank = (*of)->rank;
    auto goes = [=](int peer) -> Span { return {from, peer == root ? facts.bytes() : 0}; };
    auto takes_part = [=](int peer) { return rank == root || peer == root; };
    if (rank == root)
        return collective(*of, facts, to, facts.bytes(), goes, takes_part, reduce, stream);
    return collective(*of, facts, nullptr, 0, goes, takes_part, nothing, stream);
}

PRETEND_API int ncclReduceScatter(const char *from, char *to, size_t count, int type, int operation, Handle *of,
                                  Stream stream)
{
    Facts facts{REDUCE_SCATTER, type, operation, 0, count};
    auto goes = [=](int peer) -> Span { return {from + peer * facts.bytes(), facts.bytes()}; };
    return collective(*of, facts, to, facts.bytes(), goes, [](int) { return true; }, reduce, stream);
}

PRETEND_API int ncclBroadcast(const char *from, char *to, size_t count, int type, int root, Handle *of, Stream stream)
{
    Facts facts{BROADCAST, type, 0, root, count};
    int rank = (*of)->rank;
    auto goes = [=](int) -> Span { return {from, rank == root ? facts.bytes() : 0}; };
    auto takes_part = [=](int peer) { return rank == root || peer == root; };
    auto end = [=](const Call &call) {
        for (const Letter &letter : call.letters)
            if (letter.peer == root)
                memcpy(call.to, letter.data.data(), letter.data.size());
    };
    return collective(*of, facts, to, facts.bytes(), goes, takes_part, end, stream);
}

PRETEND_API int ncclAllGather(const char *from, char *to, size_t count, int type, Handle *of, Stream stream)
{
    Facts facts{ALL_GATHER, type, 0, 0, count};
    auto goes = [=](int) -> Span { return {from, facts.bytes()}; };
    size_t written = facts.bytes() * (*of)->size;
    return collective(*of, facts, to, written, goes, [](int) { return true; }, gather, stream);
}

PRETEND_API int ncclSend(const char *from, size_t count, int type, int peer, Handle *of, Stream stream)
{
    return pair(*of, true, (char *)from, count, type, peer, stream);
}

PRETEND_API int ncclRecv(char *to, size_t count, int type, int peer, Handle *of, Stream stream)
{
    return pair(*of, false, to, count, type, peer, stream);
}
