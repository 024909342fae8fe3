// Stream capture, and the graphs that come of it.
//
// Strict about: who may end a capture; streams that joined and nobody waited for; what spoiled the capture before it ended.
// A graph does its nodes one after the other, as they were captured, whatever streams they were on.
#include "device.h"

using namespace pretend;

namespace
{
bool unjoined(Capture *capture)
{
    for (Stream *stream : capture->joined)
        if (!stream->origin && stream->merged < stream->captured)
            return true;
    return false;
}

void leave(Capture *capture)
{
    for (Stream *stream : capture->joined) {
        stream->capture = nullptr;
        stream->origin = false;
    }
    captures.erase(capture);
}
} // namespace

PRETEND_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    Locked locked;
    Stream *stream = stream_of(handle);
    if (stream->legacy)
        return fail(cudaErrorStreamCaptureUnsupported, "a capture of the legacy stream");
    if (stream->capture)
        return fail(cudaErrorIllegalState, "cudaStreamBeginCapture, twice");
    Capture *capture = new Capture;
    capture->graph = new Graph;
    capture->mode = mode;
    capture->thread = this_thread();
    capture->joined.insert(stream);
    captures.insert(capture);
    stream->capture = capture;
    stream->origin = true;
    stream->captured = stream->merged = 0;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *to)
{
    Locked locked;
    const char *what = "cudaStreamEndCapture";
    *to = nullptr;
    Stream *stream = stream_of(handle);
    Capture *capture = stream->capture;
    if (!capture)
        return fail(cudaErrorIllegalState, what);
    if (!stream->origin)
        return fail(cudaErrorStreamCaptureUnmatched, what);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != this_thread())
        return fail(cudaErrorStreamCaptureWrongThread, what);
    cudaError_t error = capture->invalid    ? cudaErrorStreamCaptureInvalidated
                        : unjoined(capture) ? cudaErrorStreamCaptureUnjoined
                                            : cudaSuccess;
    leave(capture);
    if (error) {
        delete capture->graph;
        return fail(error, what);
    }
    *to = (cudaGraph_t)capture->graph;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
    Locked locked;
    Stream *stream = stream_of(handle);
    if (stream->legacy)
        if (cudaError_t error = refuse_implicit("cudaStreamIsCapturing"))
            return error;
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long)
{
    Locked locked;
    if (!graph)
        return fail(cudaErrorInvalidValue, "cudaGraphInstantiate");
    *to = (cudaGraphExec_t) new Graph(*(Graph *)graph);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    Locked locked;
    delete (Graph *)graph;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    Locked locked;
    finish_all();
    delete (Graph *)graph;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphLaunch(cudaGraphExec_t launched, cudaStream_t stream)
{
    Locked locked;
    Graph *graph = (Graph *)launched;
    auto work = [graph] {
        for (Work &node : graph->nodes)
            node();
    };
    return enqueue(stream_of(stream), work, "cudaGraphLaunch");
}

PRETEND_API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
PRETEND_API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char *, unsigned) { return cudaSuccess; }
