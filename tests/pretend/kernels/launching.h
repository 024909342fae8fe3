// How a kernel that was compiled for the host is launched: block after block, thread after thread; in every other launch the
// last block comes first, so that whoever counts on an order of blocks is found.
//
// Kernels whose threads never wait for each other need no coroutines, and are much faster without. Shared memory is all ones
// at the beginning of a block.
#pragma once
#include "threads.h"

constexpr size_t PRETEND_STACK = 1 << 17;
constexpr size_t PRETEND_ALIGNED = 128;

static char *pretend_stacks;

static void pretend_place(unsigned thread)
{
    pretend_current = thread;
    unsigned layer = blockDim.x * blockDim.y;
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / layer};
}

// A stack from which pretend_switch takes registers and goes on in pretend_enter.
static void *pretend_new_stack(unsigned thread)
{
    void **top = (void **)(pretend_stacks + (thread + 1) * PRETEND_STACK);
    *--top = nullptr; // where nobody returns to: it keeps the stack aligned as a call does
    *--top = (void *)pretend_enter;
    for (int i = 0; i < PRETEND_REGISTERS; ++i)
        *--top = nullptr;
    return top;
}

static void pretend_take_turns(unsigned threads)
{
    pretend_block.alive = threads;
    pretend_block.arrived = 0;
    for (unsigned first = 0; first < threads; first += PRETEND_WARP) {
        pretend_barrier &warp = pretend_warps[first / PRETEND_WARP];
        warp.alive = threads - first < PRETEND_WARP ? threads - first : PRETEND_WARP;
        warp.arrived = 0;
    }
    for (unsigned thread = 0; thread < threads; ++thread)
        pretend_coroutines[thread] = {pretend_new_stack(thread), false};
    for (unsigned left = threads; left;) {
        left = 0;
        for (unsigned thread = 0; thread < threads; ++thread)
            if (!pretend_coroutines[thread].done) {
                pretend_place(thread);
                pretend_switch(&pretend_scheduler, pretend_coroutines[thread].stack);
                left += !pretend_coroutines[thread].done;
            }
    }
}

template <typename F> static void pretend_run(const unsigned *dims, size_t shared, F work, bool turns)
{
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    pretend_shared = (char *)aligned_alloc(PRETEND_ALIGNED, (shared + PRETEND_ALIGNED) & ~(PRETEND_ALIGNED - 1));
    pretend_work = [](void *told) { (*(F *)told)(); };
    pretend_told = &work;
    if (turns && !pretend_stacks)
        pretend_stacks = (char *)aligned_alloc(4096, PRETEND_THREADS * PRETEND_STACK);
    static bool backwards = true;
    backwards = !backwards;
    size_t layer = (size_t)gridDim.x * gridDim.y, blocks = layer * gridDim.z;
    for (size_t at = 0; at < blocks; ++at) {
        size_t block = backwards ? blocks - 1 - at : at;
        blockIdx = {unsigned(block % gridDim.x), unsigned(block / gridDim.x % gridDim.y), unsigned(block / layer)};
        if (turns) {
            memset(pretend_shared, 0xff, shared);
            pretend_take_turns(threads);
            continue;
        }
        for (unsigned thread = 0; thread < threads; ++thread) {
            pretend_place(thread);
            work();
        }
    }
    free(pretend_shared);
}

// A row of the table that device/modules.cpp looks kernels up in.
struct pretend_entry {
    const char *name;
    int count;
    const size_t *sizes;
    void (*launch)(const unsigned *dims, void **arguments, size_t shared);
};

template <auto kernel, bool turns> struct pretend_kernel;

template <typename... A, void (*kernel)(A...), bool turns> struct pretend_kernel<kernel, turns> {
    static inline const size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};

    template <size_t... I>
    static void call(const unsigned *dims, void **arguments, size_t shared, std::index_sequence<I...>)
    {
        auto work = [=] { kernel(*(std::remove_const_t<std::remove_reference_t<A>> *)arguments[I]...); };
        pretend_run(dims, shared, work, turns);
    }

    static void launch(const unsigned *dims, void **arguments, size_t shared)
    {
        call(dims, arguments, shared, std::index_sequence_for<A...>{});
    }

    static pretend_entry entry(const char *name) { return {name, (int)sizeof...(A), sizes, launch}; }
};
