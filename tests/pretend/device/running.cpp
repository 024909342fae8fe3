// When work on the pretend device is done, and what may not be called while a stream captures.
//
// Strict about: calls that CUDA forbids in a capture, which spoil it; the legacy stream and those that block wait for each
// other, streams that do not block wait for nobody; work that was told to a stream that is gone.
#include "device.h"
#include <cstdlib>
#include <memory>
#include <pthread.h>
#include <unistd.h>

namespace pretend
{
// Never freed: threads go on while a process ends.
std::set<Stream *> &streams = *new std::set<Stream *>;
std::set<Event *> &events = *new std::set<Event *>;
std::set<Capture *> &captures = *new std::set<Capture *>;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

namespace
{
std::recursive_mutex &calls = *new std::recursive_mutex; // a host function that a stream calls may call CUDA in turn
thread_local int held = 0;                               // how often by this thread
constexpr int MOST_DEVICES = 16;
constexpr int PAUSE = 200; // microseconds

bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value == '1';
}

unsigned long long number(const char *name, unsigned long long otherwise)
{
    const char *value = getenv(name);
    return value ? strtoull(value, nullptr, 10) : otherwise;
}

Stream *legacy_stream()
{
    static Stream *made[MOST_DEVICES] = {};
    Stream *&stream = made[current_device];
    if (!stream) {
        stream = new Stream;
        stream->legacy = true;
        stream->device = current_device;
        streams.insert(stream);
    }
    return stream;
}

// The legacy stream and those of its device that block wait for each other.
void finish_before(Stream *stream)
{
    if (stream->flags & cudaStreamNonBlocking)
        return;
    if (!stream->legacy) {
        finish(legacy_stream());
        return;
    }
    for (Stream *other : std::set<Stream *>(streams))
        if (!other->legacy && other->device == stream->device && !(other->flags & cudaStreamNonBlocking))
            finish(other);
}

void let_others_call()
{
    int times = held;
    for (int i = 0; i < times; ++i)
        calls.unlock();
    usleep(PAUSE);
    for (int i = 0; i < times; ++i)
        calls.lock();
}

// Whether work of a kind is done as soon as it is told.
bool at_once(Kind kind)
{
    const char *order = getenv("PRETEND_ORDER");
    return eager() || (order && ((kind == KERNEL && !strcmp(order, "kernels")) || (kind == COPY && !strcmp(order, "copies"))));
}

// Behind all that the stream was told before.
void queue(Stream *stream, Attempt attempt, Kind kind)
{
    if (!eager())
        finish_before(stream);
    stream->queue.push_back({++stream->told, attempt});
    if (at_once(kind))
        advance(stream, ALL);
}
} // namespace

Locked::Locked()
{
    calls.lock();
    held += 1;
}

Locked::~Locked()
{
    held -= 1;
    calls.unlock();
}

bool eager()
{
    static const bool value = is_set("PRETEND_EAGER");
    return value;
}

bool tracing()
{
    static const bool value = is_set("PRETEND_TRACE");
    return value;
}

int devices()
{
    static const int value = std::min<int>(number("PRETEND_DEVICES", 1), MOST_DEVICES);
    return value;
}

size_t memory_of_a_device()
{
    static const size_t value = number("PRETEND_MEMORY", 4ull << 30);
    return value;
}

size_t most_registered() { return number("PRETEND_REGISTERED", ~0ull); }

unsigned long this_thread() { return (unsigned long)pthread_self(); }

cudaError_t fail(cudaError_t error, const char *what)
{
    last_error = error;
    PRETEND_TRACE("%s fails with %d", what, (int)error);
    return error;
}

Stream *stream_of(const void *handle)
{
    bool named = handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread;
    return named ? (Stream *)handle : legacy_stream();
}

bool advance(Stream *stream, Count upto)
{
    while (!stream->queue.empty() && stream->queue.front().at <= upto) {
        Queued next = std::move(stream->queue.front());
        stream->queue.pop_front();
        if (!next.attempt()) {
            stream->queue.push_front(std::move(next));
            return false;
        }
        stream->done = next.at;
    }
    return true;
}

void finish(Stream *stream, Count upto)
{
    while (!advance(stream, upto))
        let_others_call();
}

void finish_all()
{
    for (Stream *stream : std::set<Stream *>(streams))
        finish(stream);
}

void finish_blocking()
{
    for (Stream *stream : std::set<Stream *>(streams))
        if (!(stream->flags & cudaStreamNonBlocking))
            finish(stream);
}

cudaError_t enqueue(Stream *stream, Work work, const char *what, Kind kind)
{
    if (!streams.count(stream))
        return fail(cudaErrorInvalidResourceHandle, what);
    if (stream->capture) {
        if (stream->capture->invalid)
            return fail(cudaErrorStreamCaptureInvalidated, what);
        stream->capture->graph->nodes.push_back(work);
        stream->captured++;
        return cudaSuccess;
    }
    if (stream->legacy)
        if (cudaError_t error = refuse_implicit(what))
            return error;
    auto attempt = [work] {
        work();
        return true;
    };
    queue(stream, attempt, kind);
    return cudaSuccess;
}

cudaError_t enqueue_until(Stream *stream, Attempt attempt, const char *what)
{
    if (!streams.count(stream))
        return fail(cudaErrorInvalidResourceHandle, what);
    if (stream->capture) {
        stream->capture->invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported, what);
    }
    if (stream->legacy)
        if (cudaError_t error = refuse_implicit(what))
            return error;
    queue(stream, attempt, WAITING);
    return cudaSuccess;
}

cudaError_t refuse_unsafe(const char *what)
{
    for (Capture *capture : captures) {
        bool own = capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == this_thread();
        if (capture->mode == cudaStreamCaptureModeGlobal || own) {
            capture->invalid = true;
            return fail(cudaErrorStreamCaptureUnsupported, what);
        }
    }
    return cudaSuccess;
}

cudaError_t refuse_implicit(const char *what)
{
    for (Capture *capture : captures)
        for (Stream *stream : capture->joined)
            if (!(stream->flags & cudaStreamNonBlocking)) {
                capture->invalid = true;
                return fail(cudaErrorStreamCaptureImplicit, what);
            }
    return cudaSuccess;
}

bool not_yet(int &asked) { return !eager() && ++asked % 3; }
} // namespace pretend

// For the libraries: they put their work on streams as kernels are put there.
PRETEND_API int pretend_enqueue(void *stream, void (*call)(void *), void *told, void (*forget)(void *))
{
    pretend::Locked locked;
    std::shared_ptr<void> kept(told, forget);
    return pretend::enqueue(pretend::stream_of(stream), [call, kept] { call(kept.get()); }, "a library's call");
}

PRETEND_API int pretend_enqueue_until(void *stream, int (*attempt)(void *), void *told, void (*forget)(void *))
{
    pretend::Locked locked;
    std::shared_ptr<void> kept(told, forget);
    auto tried = [attempt, kept] { return attempt(kept.get()) != 0; };
    return pretend::enqueue_until(pretend::stream_of(stream), tried, "a library's call");
}

// How much a stream was told so far; and it goes on as far as that, as if somebody waited for it.
PRETEND_API unsigned long long pretend_told(void *stream)
{
    pretend::Locked locked;
    return pretend::stream_of(stream)->told;
}

PRETEND_API void pretend_advance(void *handle, unsigned long long upto)
{
    pretend::Locked locked;
    if (pretend::streams.count((pretend::Stream *)handle))
        pretend::advance((pretend::Stream *)handle, upto);
}

PRETEND_API int pretend_device_of(void *stream)
{
    pretend::Locked locked;
    return pretend::stream_of(stream)->device;
}

PRETEND_API int pretend_capturing(void *stream)
{
    pretend::Locked locked;
    return pretend::stream_of(stream)->capture != nullptr;
}
