// What the parts of the pretend CUDA device share: streams, events and captures, and how work is put on a stream.
//
// The device is of host memory, its kernels are functions of the host, and one call at a time is served. Work is done as late
// as CUDA allows: when somebody waits for it. So whoever forgets to wait, or to let a stream wait for another, reads what is
// not there yet. What never happens here is that two things happen at the same time. Who waits for work that waits for other
// processes lets other threads call meanwhile.
//
// PRETEND_EAGER=1     work is done at once, to find out whether something is a matter of order
// PRETEND_ORDER=...   "kernels": all but copies between host and device is done at once, and these late; "copies": the other way
//                     round. Then memory is written to before what still reads it, where nobody waits. May change at any time
// PRETEND_DEVICES=n   how many devices there are (1)
// PRETEND_MEMORY=n    bytes that each has (4 GiB)
// PRETEND_REGISTERED=n   bytes of the host that may be registered (no limit). May change at any time
// PRETEND_TRACE=1     say each launch and each call that fails
#pragma once
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <vector>
// The header gives newer functions these names; here they are functions too.
#undef cudaGetDeviceProperties
#undef cudaStreamIsCapturing

#define PRETEND_API extern "C" __attribute__((visibility("default")))

namespace pretend
{
using Work = std::function<void()>;
using Attempt = std::function<bool()>; // whether it is done; what is not is tried again
using Count = unsigned long long;
enum Kind { KERNEL, COPY, WAITING }; // COPY: between host and device
constexpr Count ALL = ~0ull;

struct Stream;

// What was captured: done in the order in which it was told.
struct Graph {
    std::vector<Work> nodes;
};

struct Capture {
    Graph *graph;
    int mode;
    unsigned long thread;
    bool invalid = false;
    std::set<Stream *> joined; // the stream that began it, and those that waited for its events
};

struct Queued {
    Count at;
    Attempt attempt;
};

struct Stream {
    unsigned flags = 0;
    int priority = 0;
    bool legacy = false; // the stream that is there without being made, which waits for others and they for it
    int device = 0;
    std::deque<Queued> queue;
    Count told = 0, done = 0;
    Capture *capture = nullptr;
    bool origin = false;
    Count captured = 0,
          merged = 0; // nodes of this stream in the capture, and how many of them another stream waits for
};

struct Event {
    unsigned flags = 0;
    int device = 0;
    Stream *stream = nullptr;
    Count at = 0;
    bool recorded = false;
    Capture *capture = nullptr;
    Count captured = 0;
    int asked = 0;
    double milliseconds = 0;
};

struct Locked {
    Locked();
    ~Locked();
};

extern std::set<Stream *> &streams;
extern std::set<Event *> &events;
extern std::set<Capture *> &captures; // those under way; one that is over is kept in memory, since events still name it
extern thread_local int current_device;
extern thread_local cudaError_t last_error;

bool eager();
bool tracing();
int devices();
size_t memory_of_a_device();
size_t most_registered();
unsigned long this_thread();

// Notes an error for cudaGetLastError, and gives it back.
cudaError_t fail(cudaError_t error, const char *what);

// The stream of a handle: 0, 1 and 2 are the legacy one of the current device.
Stream *stream_of(const void *handle);

// What is on a stream up to a point is done, as far as nothing in it waits for others; whether all of it is.
bool advance(Stream *stream, Count upto);

// What is on a stream up to a point is done, or all, or all of those that the legacy stream waits for.
void finish(Stream *stream, Count upto = ALL);
void finish_all();
void finish_blocking();

// Puts work on a stream: into its capture, if it has one.
cudaError_t enqueue(Stream *stream, Work work, const char *what, Kind kind = KERNEL);

// Puts what may have to wait for others on a stream, which goes on behind it when it is done. Not in captures.
cudaError_t enqueue_until(Stream *stream, Attempt attempt, const char *what);

// Refuses what must not be called while any stream captures (by the mode of its capture), which spoils the capture.
cudaError_t refuse_unsafe(const char *what);

// Refuses what waits for the legacy stream while a stream captures that waits for it.
cudaError_t refuse_implicit(const char *what);

// Whoever asks without waiting for what is not done hears twice that it is not ready, and the third time that it is.
bool not_yet(int &asked);
} // namespace pretend

#define PRETEND_TRACE(...)                                                                                             \
    do {                                                                                                               \
        if (pretend::tracing()) {                                                                                      \
            fprintf(stderr, "[pretend] " __VA_ARGS__);                                                                 \
            fputc('\n', stderr);                                                                                       \
        }                                                                                                              \
    } while (0)
