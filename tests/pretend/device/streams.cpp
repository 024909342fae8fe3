// Streams, and the events by which they wait for each other.
//
// Strict about: streams and events that are gone, or another device's; asking or waiting for a stream or event in a capture, which spoils it; a
// stream in a capture that waits for what was not captured, and the other way round; times of events that were made without.
// An event that was never recorded is waited for by nobody, as in CUDA. Priorities are noted and mean nothing.
#include "device.h"
#include <time.h>

using namespace pretend;

namespace
{
cudaError_t make_stream(cudaStream_t *to, unsigned flags, int priority)
{
    Locked locked;
    Stream *stream = new Stream;
    stream->flags = flags;
    stream->priority = priority;
    stream->device = current_device;
    streams.insert(stream);
    *to = (cudaStream_t)stream;
    return cudaSuccess;
}

cudaError_t make_event(cudaEvent_t *to, unsigned flags)
{
    Locked locked;
    Event *event = new Event;
    event->flags = flags;
    event->device = current_device;
    events.insert(event);
    *to = (cudaEvent_t)event;
    return cudaSuccess;
}

Event *event_of(cudaEvent_t handle)
{
    Event *event = (Event *)handle;
    return events.count(event) ? event : nullptr;
}

cudaError_t spoil(Capture *capture, cudaError_t error, const char *what)
{
    capture->invalid = true;
    return fail(error, what);
}

// Whoever asks for an event, or waits for it at the host.
cudaError_t refuse_asking(Event *event, const char *what)
{
    if (!event)
        return fail(cudaErrorInvalidResourceHandle, what);
    if (event->capture && captures.count(event->capture))
        return spoil(event->capture, cudaErrorCapturedEvent, what);
    return refuse_unsafe(what);
}

// A stream waits for an event that was captured: it joins the capture, and what the event is behind is waited for.
cudaError_t wait_captured(Stream *stream, Event *event)
{
    const char *what = "cudaStreamWaitEvent";
    Capture *capture = event->capture;
    if (!captures.count(capture))
        return fail(cudaErrorCapturedEvent, what);
    if (stream->capture && stream->capture != capture)
        return fail(cudaErrorStreamCaptureUnmatched, what);
    if (!stream->capture) {
        if (stream->legacy)
            return fail(cudaErrorStreamCaptureImplicit, what);
        stream->capture = capture;
        stream->origin = false;
        stream->captured = stream->merged = 0;
        capture->joined.insert(stream);
    }
    if (event->stream && event->stream != stream)
        event->stream->merged = std::max(event->stream->merged, event->captured);
    return cudaSuccess;
}

double now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}
} // namespace

PRETEND_API cudaError_t cudaStreamCreate(cudaStream_t *to) { return make_stream(to, 0, 0); }
PRETEND_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *to, unsigned flags)
{
    return make_stream(to, flags, 0);
}

PRETEND_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *to, unsigned flags, int priority)
{
    return make_stream(to, flags, priority);
}

PRETEND_API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    Locked locked;
    *flags = stream_of(handle)->flags;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    Locked locked;
    *priority = stream_of(handle)->priority;
    return cudaSuccess;
}

// The stream is not freed: what captured it, or waits for it, may still look whether it is there.
PRETEND_API cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    Locked locked;
    Stream *stream = stream_of(handle);
    if (!streams.count(stream))
        return fail(cudaErrorInvalidResourceHandle, "cudaStreamDestroy");
    finish(stream);
    streams.erase(stream);
    for (Event *event : events)
        if (event->stream == stream)
            event->stream = nullptr;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    Locked locked;
    Stream *stream = stream_of(handle);
    if (stream->capture)
        return spoil(stream->capture, cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize");
    if (cudaError_t error = refuse_unsafe("cudaStreamSynchronize"))
        return error;
    if (stream->legacy)
        finish_blocking();
    finish(stream);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    Locked locked;
    static int asked = 0;
    Stream *stream = stream_of(handle);
    if (stream->capture)
        return spoil(stream->capture, cudaErrorStreamCaptureUnsupported, "cudaStreamQuery");
    if (stream->legacy)
        if (cudaError_t error = refuse_implicit("cudaStreamQuery"))
            return error;
    if (!stream->queue.empty() && not_yet(asked))
        return cudaErrorNotReady;
    return advance(stream, ALL) ? cudaSuccess : cudaErrorNotReady;
}

PRETEND_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *told)
{
    Locked locked;
    return enqueue(stream_of(handle), [=] { function(told); }, "cudaLaunchHostFunc");
}

PRETEND_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void *told, unsigned)
{
    Locked locked;
    return enqueue(stream_of(handle), [=] { function(handle, cudaSuccess, told); }, "cudaStreamAddCallback");
}

PRETEND_API cudaError_t cudaEventCreate(cudaEvent_t *to) { return make_event(to, 0); }
PRETEND_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *to, unsigned flags) { return make_event(to, flags); }

PRETEND_API cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    Locked locked;
    Event *event = event_of(handle);
    if (!event)
        return fail(cudaErrorInvalidResourceHandle, "cudaEventDestroy");
    events.erase(event);
    delete event;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t where)
{
    Locked locked;
    Event *event = event_of(handle);
    Stream *stream = stream_of(where);
    if (!event || !streams.count(stream))
        return fail(cudaErrorInvalidResourceHandle, "cudaEventRecord");
    if (stream->device != event->device) {
        fprintf(stderr, "[pretend] an event of device %d on a stream of device %d\n", event->device, stream->device);
        return fail(cudaErrorInvalidResourceHandle, "cudaEventRecord");
    }
    if (stream->capture) {
        if (stream->capture->invalid)
            return fail(cudaErrorStreamCaptureInvalidated, "cudaEventRecord");
        event->capture = stream->capture;
        event->captured = stream->captured;
        event->stream = stream;
        event->recorded = true;
        return cudaSuccess;
    }
    if (stream->legacy)
        if (cudaError_t error = refuse_implicit("cudaEventRecord"))
            return error;
    event->capture = nullptr;
    event->stream = stream;
    event->at = stream->told;
    event->recorded = true;
    event->milliseconds = now();
    event->asked = 0;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t for_what, unsigned)
{
    Locked locked;
    const char *what = "cudaStreamWaitEvent";
    Event *event = event_of(for_what);
    Stream *stream = stream_of(handle);
    if (!event)
        return fail(cudaErrorInvalidResourceHandle, what);
    if (!event->recorded)
        return cudaSuccess;
    if (event->capture)
        return wait_captured(stream, event);
    if (stream->capture)
        return spoil(stream->capture, cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent on what was not captured");
    Stream *other = event->stream;
    Count at = event->at;
    if (!other || other->done >= at)
        return cudaSuccess;
    return enqueue_until(stream, [=] { return !streams.count(other) || advance(other, at); }, what);
}

PRETEND_API cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    Locked locked;
    Event *event = event_of(handle);
    if (cudaError_t error = refuse_asking(event, "cudaEventQuery"))
        return error;
    if (event->stream && event->stream->done < event->at) {
        if (not_yet(event->asked) || !advance(event->stream, event->at))
            return cudaErrorNotReady;
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    Locked locked;
    Event *event = event_of(handle);
    if (cudaError_t error = refuse_asking(event, "cudaEventSynchronize"))
        return error;
    if (event->stream)
        finish(event->stream, event->at);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    Locked locked;
    Event *begin = event_of(from), *end = event_of(to);
    bool timed = begin && end && begin->recorded && end->recorded;
    if (!timed || ((begin->flags | end->flags) & cudaEventDisableTiming))
        return fail(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime");
    *milliseconds = (float)(end->milliseconds - begin->milliseconds);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventElapsedTime_v2(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    return cudaEventElapsedTime(milliseconds, from, to);
}
